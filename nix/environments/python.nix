# Preset: Python with PyYAML.
#
# Type: { pkgs } -> { interpreter_type, description, packages }
{ pkgs }:
{
  interpreter_type = "python";
  description = "Python ${pkgs.python3.pythonVersion} with PyYAML";
  packages = [
    (pkgs.python3.withPackages (python: [ python.pyyaml ]))
    pkgs.coreutils
  ];
}
