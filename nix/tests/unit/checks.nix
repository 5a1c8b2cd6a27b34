# Tests of ../../lib/checks.nix.
let
  checks = import ../../lib/checks.nix;
  fails = expr: msg: {
    inherit expr;
    expectedError = { inherit msg; };
  };
  badName =
    name: shown:
    fails (checks.name name) "nsm: environment name ${shown}: expected up to 64 lower-case letters, digits and '-'";
in
{
  testName = {
    expr = map checks.name [
      "a"
      "0"
      "data-science-2"
      "a--"
    ];
    expected = [
      "a"
      "0"
      "data-science-2"
      "a--"
    ];
  };
  testNameEmpty = badName "" ''""'';
  testNameUpperCase = badName "Data" ''"Data"'';
  testNameDash = badName "-rf" ''"-rf"'';
  testNamePath = badName "../x" ''"[.][.]/x"'';
  testNameShell = badName "a$(id)" ''"a[$][(]id[)]"'';
  testNameSpace = badName "a b" ''"a b"'';
  testNameNewline = badName "a\nb" ''"a[\\]nb"'';
  testNameLong = {
    expr = checks.name (builtins.concatStringsSep "" (builtins.genList (_: "a") 64));
    expected = builtins.concatStringsSep "" (builtins.genList (_: "a") 64);
  };
  testNameTooLong = fails (checks.name (builtins.concatStringsSep "" (builtins.genList (_: "a") 65))) "expected up to 64";
  testNameNumber = badName 3 "3";
  testNameSet = badName { } "a set";

  testInterpreterType = {
    expr = map (checks.interpreterType "x") [
      "python"
      "bash"
      "node"
    ];
    expected = [
      "python"
      "bash"
      "node"
    ];
  };
  testInterpreterTypeUnknown = fails (checks.interpreterType "x" "ruby") "nsm: environment 'x': unknown interpreter_type \"ruby\": expected one of bash, node, python[.]";
  testInterpreterTypeNull = fails (checks.interpreterType "x" null) "unknown interpreter_type null";

  testTimeout = {
    expr = map (checks.timeout "x") [
      1
      0.5
    ];
    expected = [
      1
      0.5
    ];
  };
  testTimeoutZero = fails (checks.timeout "x" 0) "nsm: environment 'x': timeout_seconds is 0: expected a number greater than 0, at most 31622400[.]";
  testTimeoutLong = fails (checks.timeout "x" 31622401) "timeout_seconds is 31622401";
  testMemoryLarge = fails (checks.memory "x" 1048577) "memory_mb is 1048577";
  testTimeoutText = fails (checks.timeout "x" "30") "timeout_seconds is \"30\"";
  testMemory = {
    expr = checks.memory "x" 512;
    expected = 512;
  };
  testMemoryNegative = fails (checks.memory "x" (-1)) "memory_mb is -1: expected a whole number of MiB greater than 0, at most 1048576[.]";
  testMemoryFraction = fails (checks.memory "x" 0.5) "memory_mb is 0[.]5: expected a whole number of MiB";

  testPackagesString = fails (checks.packages "x" "jq") "nsm: environment 'x': packages is \"jq\": expected a list of packages";
  testPackagesStrings = fails (checks.packages "x" [ "jq" ]) "packages is a list with something else than packages in it";

  testDescription = {
    expr = map (checks.description "x") [
      null
      "one line"
    ];
    expected = [
      null
      "one line"
    ];
  };
  testDescriptionLines = fails (checks.description "x" "two\nlines") "description is \"two[\\\\]nlines\": expected one line of text[.]";

  testPreload = {
    expr = checks.preload "x" "python" [
      "numpy"
      "os.path"
    ];
    expected = [
      "numpy"
      "os.path"
    ];
  };
  testPreloadBash = fails (checks.preload "x" "bash" [ "os" ]) "nsm: environment 'x': preload is for Python environments only[.] Remove it[.]";
  testPreloadNone = {
    expr = checks.preload "x" "bash" [ ];
    expected = [ ];
  };
  testPreloadMany = fails (checks.preload "x" "python" (
    builtins.genList (_: "os") 65
  )) "expected a list of up to 64 names";
  testPreloadOption = fails (checks.preload "x" "python" [ "-c" ]) "nsm: environment 'x': preload: expected a list of up to 64 names of Python modules";
  testPreloadText = fails (checks.preload "x" "python" "numpy") "expected a list of up to 64 names of Python modules";
}
