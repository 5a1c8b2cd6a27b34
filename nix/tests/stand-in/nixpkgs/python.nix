# Python and its packages.
#
# Deviates from nixpkgs: `withPackages` makes a virtual environment of links instead of wrapped
# programs, so `sys.prefix` is the environment in both, and the way there differs; Python packages
# are the ones of the clone's .venv.
{ lib, seed }:
pkgs:
let
  version = seed.python;
  sitePackages = "lib/python${version}/site-packages";

  # The pure part of PyYAML is enough, and any package of the clone's .venv can be added here and in
  # tools/standin.py.
  pythonPackages = {
    python = pkgs.python3;
    pyyaml = pkgs.relocate "python-pyyaml" { pname = "python3-pyyaml"; };
  };

  withPackages =
    select:
    let
      selected = select pythonPackages;
    in
    pkgs.runCommand "python3-host-env"
      {
        meta.mainProgram = "python3";
        passthru = python3Attributes;
      }
      ''
        mkdir -p "$out/bin" "$out/${sitePackages}"
        for program in ${pkgs.python3}/bin/*; do
          ln -s "$program" "$out/bin/"
        done
        echo "home = ${pkgs.python3}/bin" >"$out/pyvenv.cfg"
        for package in ${toString selected}; do
          ln -s "$package/${sitePackages}"/* "$out/${sitePackages}/"
        done
      '';

  python3Attributes = {
    inherit sitePackages withPackages;
    pythonVersion = version;
    pkgs = pythonPackages;
  };
in
{
  python3 = pkgs.relocate "python3" {
    # Files of the store are a second old, so that modules compiled by their date would never do.
    afterwards = ''
      "$out/bin/python3" -I -S -m compileall -q --invalidation-mode unchecked-hash "$out/lib"
    '';
    passthru = python3Attributes // {
      interpreter = "${pkgs.python3}/bin/python3";
    };
  };
  python3Packages = pythonPackages;
}
