# The library, for one nixpkgs: what the flake's `lib` and packages are made of.
#
# Type: { pkgs, jailLib } -> { mkSandbox, mkEnvironment, fromToml, presets, environments }
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
in
builtins.seq ((import ../systems.nix).check pkgs.stdenv.hostPlatform.system) {
  inherit environments mkEnvironment;

  mkSandbox = import ./mkSandbox.nix { inherit mkEnvironment; };

  fromToml = import ./fromToml.nix {
    inherit pkgs mkEnvironment;
    presets = environments;
  };

  # The presets as artifacts. Type: { NAME = derivation }
  presets = builtins.mapAttrs (name: preset: mkEnvironment ({ inherit name; } // preset)) environments;
}
