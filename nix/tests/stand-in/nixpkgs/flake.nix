# Stand-in for the nixpkgs flake: enough of its interface to evaluate, build and run nsm's Nix layer
# where there is no binary cache. `--override-input nixpkgs path:...` puts it in nixpkgs' place;
# tools/standin.py makes the copy with a seed from which packages can be built.
{
  description = "A stand-in for nixpkgs made of the host's own programs, for tests";

  outputs =
    { self }:
    let
      lib = import ./lib;
    in
    {
      inherit lib;
      legacyPackages = lib.genAttrs lib.systems.flakeExposed (system: import self { inherit system; });
    };
}
