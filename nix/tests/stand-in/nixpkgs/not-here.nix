# What can be evaluated and is not here to be built: it takes the real nixpkgs.
{ lib, seed }:
pkgs:
let
  notHere =
    name: attributes:
    pkgs.runCommand name attributes ''
      echo "The stand-in for nixpkgs cannot build ${name}: it takes the real nixpkgs." >&2
      exit 1
    '';
in
{
  nix = notHere "nix-not-here" { };
}
