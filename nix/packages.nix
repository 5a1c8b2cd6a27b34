# nsm's own packages, for one nixpkgs.
#
# Type: { pkgs, library, comma, commit ? "" } -> { nsm-unwrapped, nsm, default, claudebox }
#   library   : from ./lib
#   comma     : the program `,` with its database
#   commit    : 40 hex digits, for `nsm --version`; empty where it is not known
#   nsm       : ready to run, with the host's own interpreters; `.override { metadataJson = ...; }`
#   default   : ready to run, with the presets
#   claudebox : Claude Code in a box; `.override { nsm = ...; extraTools = [ ... ]; }`
{
  pkgs,
  library,
  comma,
  commit ? "",
}:
let
  inherit (pkgs) lib;

  python = import ./python-packages.nix {
    inherit lib;
    python = import ./lib/python.nix { inherit pkgs; };
  };
  nsm-unwrapped = import ./package.nix { inherit lib python commit; };
  nsm = lib.makeOverridable (import ./wrapper.nix) {
    inherit lib nsm-unwrapped;
    inherit (pkgs) bubblewrap makeBinaryWrapper runCommand;
  };
  default = nsm.override {
    metadataJson = import ./registryOf.nix (builtins.attrValues library.presets);
  };
in
{
  inherit default nsm nsm-unwrapped;
  claudebox = lib.makeOverridable (import ./claudebox.nix) {
    inherit lib;
    inherit (pkgs)
      bubblewrap
      git
      runCommand
      writeShellApplication
      ;
    inherit (import ./boxTools.nix { inherit pkgs comma; }) forbidden tools;
    nsm = default;
  };
}
