# Preset: Node.js.
#
# Type: { pkgs } -> { interpreter_type, description, packages }
{ pkgs }:
{
  interpreter_type = "node";
  description = "Node.js";
  packages = [
    pkgs.nodejs
    pkgs.coreutils
  ];
}
