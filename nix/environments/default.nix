# The presets by name: what of each is on PATH, and which interpreter code goes to.
#
# Type: { pkgs } -> { NAME = { interpreter_type, description, packages } }
{ pkgs }:
{
  bash = import ./bash.nix { inherit pkgs; };
  python = import ./python.nix { inherit pkgs; };
  node = import ./node.nix { inherit pkgs; };
}
