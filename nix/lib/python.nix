# The Python of the presets, and of agents in environments that have none: the newest one that the
# agent and the template are tested with, whatever nixpkgs calls its default.
#
# Type: { pkgs } -> derivation
{ pkgs }:
pkgs.python313 or pkgs.python3
