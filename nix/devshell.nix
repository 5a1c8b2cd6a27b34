# What work on nsm itself needs: what `make check` and `make test` look for on PATH.
#
# Type: { pkgs } -> derivation
#
# The Python packages are those of constraints.txt in .venv, as everywhere else: `make setup` makes
# it with this Python.
{ pkgs }:
pkgs.mkShell {
  name = "nsm";
  packages = [
    pkgs.bubblewrap
    pkgs.git
    pkgs.gnumake
    pkgs.nixfmt
    pkgs.nodejs
    pkgs.python313
    pkgs.shellcheck
  ];
}
