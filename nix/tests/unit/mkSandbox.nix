# Tests of ../../lib/mkSandbox.nix and mkEnvironment.nix.
{ pkgs, library }:
let
  least = {
    name = "x";
    interpreter_type = "python";
    packages = [ pkgs.python3 ];
  };
  make = arguments: (library.mkSandbox arguments).drvPath;
  fails = arguments: msg: {
    expr = make arguments;
    expectedError = { inherit msg; };
  };
in
{
  testMetadata = {
    expr = (library.mkSandbox least).metadata;
    expected = {
      schema = 1;
      template = 2;
      takes = [
        "policy"
        "variables"
      ];
      name = "x";
      interpreter_type = "python";
      timeout_seconds = 30;
      memory_mb = 512;
    };
  };
  testName = {
    expr = (library.mkSandbox least).name;
    expected = "nsm-sandbox-x";
  };
  # What an environment is called is not part of what its packages are.
  testLazyName = {
    expr = (library.mkSandbox (least // { packages = throw "evaluated"; })).metadata.name;
    expected = "x";
  };

  testNoName = fails { } "nsm: mkSandbox: no name is given[.] Add name";
  testBadName = fails (least // { name = "../x"; }) "nsm: environment name \"[.][.]/x\": expected";
  testMissing = fails { name = "x"; } "nsm: environment 'x': mkSandbox lacks interpreter_type, packages[.]";
  testUnknown = fails (
    least // { package = [ ]; }
  ) "nsm: environment 'x': mkSandbox knows no package: expected only interpreter_type, name, packages, backend,";
  testUnknownInterpreterType = fails (
    least // { interpreter_type = "ruby"; }
  ) "nsm: environment 'x': unknown interpreter_type \"ruby\": expected one of bash, node, python[.]";
  testBadTimeout = fails (least // { timeout_seconds = 0; }) "nsm: environment 'x': timeout_seconds is 0";
  testBadMemory = fails (least // { memory_mb = "1G"; }) "nsm: environment 'x': memory_mb is \"1G\"";
  testBadPackages = fails (least // { packages = "jq"; }) "nsm: environment 'x': packages is \"jq\"";
  testBadDescription = fails (least // { description = "a\nb"; }) "nsm: environment 'x': description is";
  testBadPreload = fails (least // { preload = [ "a b" ]; }) "nsm: environment 'x': preload: expected";
  testPreloadOfBash = fails (
    least
    // {
      interpreter_type = "bash";
      preload = [ "os" ];
    }
  ) "nsm: environment 'x': preload is for Python environments only[.]";
  testUnknownBackend = fails (
    least // { backend = "docker"; }
  ) "nsm: environment 'x': unknown backend \"docker\": expected one of jail, microvm[.]";
  testMicrovm = fails (
    least // { backend = "microvm"; }
  ) "nsm: environment 'x': the microvm backend is not there yet[.] Leave `backend` out";

  testPresets = {
    expr = builtins.mapAttrs (_: preset: preset.metadata.interpreter_type) library.presets;
    expected = {
      bash = "bash";
      node = "node";
      python = "python";
    };
  };
}
