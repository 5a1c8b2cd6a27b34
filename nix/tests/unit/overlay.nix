# Tests of ../../overlay.nix: what it adds to a nixpkgs.
{ pkgs, library }:
let
  overlaid = pkgs // overlay;
  overlay = import ../../overlay.nix {
    libraryFor = _: library;
    packagesFor =
      final:
      import ../../packages.nix {
        pkgs = final;
        inherit library;
        comma = pkgs.jq;
      };
  } overlaid pkgs;
in
{
  testAdds = {
    expr = builtins.mapAttrs (_: builtins.isAttrs) overlay;
    expected = {
      claudebox = true;
      nsm = true;
      nsm-lib = true;
    };
  };
  testHasThePresets = {
    expr = map (name: builtins.match ".*nsm-sandbox-${name}.*" overlaid.nsm.metadataJson != null) (
      builtins.attrNames library.presets
    );
    expected = [
      true
      true
      true
    ];
  };
  testPresetsHaveTheirOlderNames = {
    expr = builtins.mapAttrs (_: preset: {
      inherit (preset.metadata) name interpreter_type;
    }) { inherit (overlaid.nsm-lib.presets) bash shell; };
    expected = {
      bash = {
        name = "bash";
        interpreter_type = "bash";
      };
      shell = {
        name = "shell";
        interpreter_type = "bash";
      };
    };
  };
  testMakesSandboxes = {
    expr =
      (overlaid.nsm-lib.mkSandbox {
        name = "x";
        interpreter_type = "bash";
        packages = [ ];
      }).metadata.name;
    expected = "x";
  };
}
