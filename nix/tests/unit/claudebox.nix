# Tests of ../../claudebox.nix and ../../boxTools.nix: what a box has on its PATH.
{ pkgs, library }:
let
  inherit (pkgs) lib;
  comma = pkgs.jq;
  inherit (import ../../packages.nix { inherit pkgs library comma; }) claudebox default;
  directories = of: lib.splitString ":" of.path.path;
  bin = package: "${package}/bin";
in
{
  testToolsAreBinariesOfPackages = {
    expr = lib.all (lib.hasSuffix "/bin") (directories claudebox);
    expected = true;
  };
  testHasNsmFirst = {
    expr = builtins.head (directories claudebox) == bin default;
    expected = true;
  };
  testHasComma = {
    expr = lib.last (directories claudebox) == bin comma;
    expected = true;
  };
  testExtraToolsGoBefore =
    let
      more = claudebox.override { extraTools = [ pkgs.tree ]; };
    in
    {
      expr = {
        first = builtins.head (directories more) == bin pkgs.tree;
        rest = builtins.tail (directories more) == directories claudebox;
      };
      expected = {
        first = true;
        rest = true;
      };
    };
  testOtherNsm =
    let
      nsm = default.override { metadataJson = "{}"; };
    in
    {
      expr = builtins.head (directories (claudebox.override { inherit nsm; })) == bin nsm;
      expected = true;
    };
  testItIsAProgram = {
    expr = claudebox.meta.mainProgram;
    expected = "claudebox";
  };
}
