# Preset: Python with PyYAML.
#
# Type: { pkgs } -> { interpreter_type, description, packages }
{ pkgs }:
let
  python = import ../lib/python.nix { inherit pkgs; };
in
{
  interpreter_type = "python";
  description = "Python ${python.pythonVersion} with PyYAML";
  packages = [
    (python.withPackages (packages: [ packages.pyyaml ]))
    pkgs.coreutils
  ];
}
