# Unit tests of the pure parts and of every message to users, in nix-unit's format.
#
# Type: { pkgs, jailLib } -> { GROUP = { testNAME = { expr; expected; } | { expr; expectedError; } } }
{ pkgs, jailLib }:
let
  library = import ../../lib { inherit pkgs jailLib; };
in
{
  checks = import ./checks.nix;
  systems = import ./systems.nix { inherit pkgs jailLib; };
  interpreters = import ./interpreters.nix;
  metadata = import ./metadata.nix;
  mkSandbox = import ./mkSandbox.nix { inherit pkgs library; };
  fromToml = import ./fromToml.nix { inherit pkgs library; };
  jail = import ./jail.nix { inherit pkgs; };
  cross = import ./cross.nix { inherit pkgs; };
  flake = import ./flake.nix { inherit pkgs library; };
  modules = import ./modules.nix { inherit pkgs library; };
  overlay = import ./overlay.nix { inherit pkgs library; };
  package = import ./package.nix { inherit pkgs; };
  apps = import ./apps.nix { inherit pkgs library; };
  claudebox = import ./claudebox.nix { inherit pkgs library; };
  registryOf = import ./registryOf.nix { inherit library; };
  units = import ./units.nix { inherit pkgs; };
}
