# The library, for one nixpkgs: what the flake's `lib` and packages are made of.
#
# Type: { pkgs, jailLib } -> { mkSandbox, mkEnvironment, fromToml, presets, olderPresets, environments }
#   jailLib : `lib` of the flake jail-nix
{ pkgs, jailLib }:
let
  environments = import ../environments { inherit pkgs; };

  jail = jailLib.extend {
    inherit pkgs;
    basePermissions = import ../backends/permissions.nix { inherit pkgs; };
  };

  backends = import ../backends { inherit pkgs jail; };

  mkEnvironment = import ./mkEnvironment.nix { inherit pkgs backends; };

  # By the names of nix-sandbox-mcp, the older project.
  older.shell = environments.bash;

  artifacts = builtins.mapAttrs (name: preset: mkEnvironment ({ inherit name; } // preset));
in
builtins.seq ((import ../systems.nix).check pkgs.stdenv.hostPlatform.system) {
  inherit environments mkEnvironment;

  mkSandbox = import ./mkSandbox.nix { inherit mkEnvironment; };

  fromToml = import ./fromToml.nix {
    inherit pkgs mkEnvironment;
    inherit older;
    presets = environments;
  };

  # The presets as artifacts. Type: { NAME = derivation }
  presets = artifacts environments;

  # Those under their older names, for whoever asks for one. Type: { NAME = derivation }
  olderPresets = artifacts older;
}
