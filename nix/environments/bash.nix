# Preset: Bash and the usual tools for text and files.
#
# Type: { pkgs } -> { interpreter_type, description, packages }
{ pkgs }:
{
  interpreter_type = "bash";
  description = "Bash with coreutils, sed, grep, awk, find, jq, tree, diff, file and bc";
  packages = [
    pkgs.bash
    pkgs.coreutils
    pkgs.gnused
    pkgs.gnugrep
    pkgs.gawk
    pkgs.findutils
    pkgs.jq
    pkgs.tree
    pkgs.diffutils
    pkgs.file
    pkgs.bc
  ];
}
