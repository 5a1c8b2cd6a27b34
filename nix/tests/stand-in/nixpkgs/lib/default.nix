# The functions of nixpkgs' `lib` that the layer, its tests and jail.nix use, written from their
# documented behaviour (https://nixos.org/manual/nixpkgs/stable/#sec-functions-library). A function
# that is missed is added in its file.
#
# Deviates from nixpkgs: the `lib` of modules is not here.
let
  trivial = import ./trivial.nix;
  lists = import ./lists.nix;
  attrsets = import ./attrsets.nix;
  strings = import ./strings.nix;
  debug = import ./debug.nix;
  packages = import ./packages.nix;
in
trivial
// lists
// attrsets
// strings
// debug
// packages
// {
  inherit
    attrsets
    debug
    lists
    strings
    trivial
    ;
  inherit (packages) meta;
  asserts = { inherit (debug) assertMsg assertOneOf; };
  systems.flakeExposed = [
    "x86_64-linux"
    "aarch64-linux"
    "x86_64-darwin"
    "aarch64-darwin"
  ];
  platforms = {
    linux = [
      "x86_64-linux"
      "aarch64-linux"
    ];
    darwin = [
      "x86_64-darwin"
      "aarch64-darwin"
    ];
  };
  licenses.mit = {
    shortName = "mit";
    spdxId = "MIT";
    free = true;
  };
}
