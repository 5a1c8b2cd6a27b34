# What `import nixpkgs { system = ...; }` gives: a package set, as a fixed point with overlays.
#
# Deviates from nixpkgs: packages are the host's own programs in the host's versions, relocated
# into the store (relocate.nix); there are only the packages and functions that nsm's layer, its
# tests and jail.nix use; what needs a compiler or the network can be evaluated but fails to build
# with a message that says so (not-here.nix).
{
  system,
  overlays ? [ ],
  config ? { },
}:
let
  lib = import ./lib;

  seed = import ./seed.nix { inherit lib system; };

  parts = [
    (import ./stdenv.nix { inherit lib system; })
    (import ./build-support/run-command.nix { inherit lib system; })
    (import ./build-support/shell.nix { inherit lib system; })
    (import ./build-support/text.nix { inherit lib; })
    (import ./build-support/trees.nix { inherit lib; })
    (import ./build-support/closure.nix)
    (import ./packages.nix { inherit lib seed system; })
    (import ./python.nix { inherit lib seed; })
    (import ./python-application.nix { inherit lib seed; })
    (import ./not-here.nix)
  ];

  base =
    pkgs:
    {
      inherit config lib system;
    }
    // lib.foldl' (set: part: set // part pkgs) { } parts;
in
lib.fix (lib.foldl' (lib.flip lib.extends) base overlays)
