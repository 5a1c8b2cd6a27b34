# Tests of ../../lib/flake.nix, the flake's `lib`.
{ pkgs, library }:
let
  lib = import ../../lib/flake.nix { libraryFor = pkgs: builtins.seq pkgs library; };
in
{
  testMkSandbox = {
    expr =
      (lib.mkSandbox {
        inherit pkgs;
        name = "x";
        interpreter_type = "bash";
        packages = [ pkgs.jq ];
      }).metadata.name;
    expected = "x";
  };
  testFromToml = {
    expr = builtins.attrNames (lib.fromToml { inherit pkgs; } ./configs/project.toml).environments;
    expected = [ ];
  };
  testNoPkgs = {
    expr = lib.mkSandbox { name = "x"; };
    expectedError.msg = "nsm: mkSandbox: no pkgs is given[.] Add the nixpkgs to build with";
  };
}
