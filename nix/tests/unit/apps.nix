# Tests of ../../apps.nix: the programs for `nix run`.
{ pkgs, library }:
let
  packages = import ../../packages.nix {
    inherit pkgs library;
    comma = pkgs.jq;
  };
  apps = import ../../apps.nix { inherit (packages) claudebox default; };
in
{
  testNames = {
    expr = builtins.attrNames apps;
    expected = [
      "claudebox"
      "default"
      "nsm"
      "nsm-mcp"
      "nsm-supervisor"
    ];
  };
  testEachIsAnApp = {
    expr = pkgs.lib.unique (map (app: app.type) (builtins.attrValues apps));
    expected = [ "app" ];
  };
  testPrograms = {
    expr = builtins.mapAttrs (_: app: app.program) apps;
    expected = {
      claudebox = "${packages.claudebox}/bin/claudebox";
      default = "${packages.default}/bin/nsm";
      nsm = "${packages.default}/bin/nsm";
      nsm-mcp = "${packages.default}/bin/nsm-mcp";
      nsm-supervisor = "${packages.default}/bin/nsm-supervisor";
    };
  };
  testEachIsDescribed = {
    expr = builtins.all (app: app.meta.description != "") (builtins.attrValues apps);
    expected = true;
  };
}
