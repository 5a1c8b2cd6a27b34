# nsm's own packages, for one nixpkgs.
#
# Type: { pkgs, library } -> { nsm-unwrapped, nsm, default }
#   library : from ./lib
#   nsm     : ready to run, with the host's own interpreters; `.override { metadataJson = ...; }`
#   default : ready to run, with the presets
{ pkgs, library }:
let
  inherit (pkgs) lib;

  python = import ./python-packages.nix {
    inherit lib;
    python = import ./lib/python.nix { inherit pkgs; };
  };
  nsm-unwrapped = import ./package.nix { inherit lib python; };
  nsm = lib.makeOverridable (import ./wrapper.nix) {
    inherit lib nsm-unwrapped;
    inherit (pkgs) bubblewrap makeBinaryWrapper runCommand;
  };
in
{
  inherit nsm nsm-unwrapped;
  default = nsm.override {
    metadataJson = import ./registryOf.nix (builtins.attrValues library.presets);
  };
}
