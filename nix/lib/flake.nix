# The flake's `lib`: the library for whichever nixpkgs the caller has.
#
# Type: { libraryFor : pkgs -> library } -> { mkSandbox, fromToml }
{ libraryFor }:
{
  # Type: { pkgs, name, interpreter_type, packages, ... } -> derivation (./mkSandbox.nix)
  mkSandbox =
    arguments:
    let
      pkgs =
        arguments.pkgs
          or (throw "nsm: mkSandbox: no pkgs is given. Add the nixpkgs to build with: pkgs = nixpkgs.legacyPackages.x86_64-linux.");
    in
    (libraryFor pkgs).mkSandbox (builtins.removeAttrs arguments [ "pkgs" ]);

  # Type: { pkgs, flakes ? { } } -> path -> attrs (./fromToml.nix)
  fromToml =
    {
      pkgs,
      flakes ? { },
    }:
    (libraryFor pkgs).fromToml { inherit flakes; };
}
