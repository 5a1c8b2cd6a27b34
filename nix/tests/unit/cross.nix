# Tests of ../../lib/filter.nix and ../../lib/mkAgent.nix where the build platform is another one than
# the host platform: what runs during the build is the build platform's.
{ pkgs }:
let
  inherit (pkgs) lib;

  buildPython = pkgs.runCommand "build-python" { passthru.pythonVersion = "3.13"; } "";
  crossPkgs = pkgs // {
    buildPackages = pkgs // {
      python3 = buildPython;
      python313 = buildPython;
    };
    stdenv = pkgs.stdenv // {
      buildPlatform = pkgs.stdenv.buildPlatform // {
        canExecute = _: false;
      };
      hostPlatform = pkgs.stdenv.hostPlatform // {
        system = "aarch64-linux";
        parsed = pkgs.stdenv.hostPlatform.parsed // {
          cpu = pkgs.stdenv.hostPlatform.parsed.cpu // {
            name = "aarch64";
          };
        };
      };
    };
  };

  # nixpkgs has the script in an attribute.
  scriptOf =
    derivation:
    builtins.unsafeDiscardStringContext (
      derivation.drvAttrs.buildCommand or (builtins.elemAt derivation.drvAttrs.args 1)
    );
  has =
    derivation: text:
    lib.hasInfix (builtins.unsafeDiscardStringContext text) (scriptOf derivation);

  filter = import ../../lib/filter.nix { pkgs = crossPkgs; };

  env = pkgs.runCommand "env" { } "";
  agent =
    packages:
    import ../../lib/mkAgent.nix { pkgs = packages; } {
      name = "x";
      interpreter_type = "python";
      preload = [ "numpy" ];
      inherit env;
    };
in
{
  testFilter = {
    expr = {
      runs = has filter "${buildPython}/bin/python3 -B";
      isFor = has filter "filter_program(\"aarch64\")";
      runsOthers = has filter "${pkgs.python3}/bin/python3";
    };
    expected = {
      runs = true;
      isFor = true;
      runsOthers = false;
    };
  };
  testAgent = {
    expr = {
      compiles = has (agent crossPkgs) "compiler=${buildPython}/bin/python3";
      tries = has (agent crossPkgs) "--check";
      asksForModules = has (agent crossPkgs) "--preload";
    };
    expected = {
      compiles = true;
      tries = false;
      asksForModules = false;
    };
  };
  testAgentOtherwise = {
    expr = {
      compiles = has (agent pkgs) "compiler=$python";
      tries = has (agent pkgs) "--check";
      asksForModules = has (agent pkgs) "--preload";
    };
    expected = {
      compiles = true;
      tries = true;
      asksForModules = true;
    };
  };
}
