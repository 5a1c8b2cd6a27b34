# Every combinator of jail.nix by its name.
{ pkgs }:
let
  parts = [
    ./absent.nix
    ./order.nix
    ./script.nix
    ./environment.nix
    ./namespaces.nix
    ./files.nix
    ./closure.nix
    ./filters.nix
    ./base.nix
  ];
  combinators = builtins.foldl' (
    all: file:
    all
    // import file {
      inherit combinators pkgs;
      inherit (pkgs) lib;
      check = import ../checks.nix;
    }
  ) { } parts;
in
combinators
