# Python and its packages.
#
# As in nixpkgs, an environment's `python3` is a wrapper that tells the real one by variables what it
# is a part of: the program that runs is another than `sys.executable`.
#
# Deviates from nixpkgs: the wrapper is a shell script; Python packages are those of the clone's
# .venv that tools/standin.py collects, without what they depend on.
{ lib, seed }:
pkgs:
let
  version = seed.python;
  sitePackages = "lib/python${version}/site-packages";

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
        for module in ${pkgs.python3}/lib/python${version}/*; do
          ln -s "$module" "$out/lib/python${version}/"
        done
        for package in ${toString selected}; do
          ln -s "$package/${sitePackages}"/* "$out/${sitePackages}/"
        done
        for program in python python3 python${version}; do
          cat >"$out/bin/$program" <<EOF
        #!${pkgs.runtimeShell}
        export NIX_PYTHONPREFIX=$out
        export NIX_PYTHONEXECUTABLE=$out/bin/python${version}
        export NIX_PYTHONPATH=$out/${sitePackages}
        export PYTHONNOUSERSITE=true
        exec -a "\$0" ${pkgs.python3}/bin/$program "\$@"
        EOF
          chmod +x "$out/bin/$program"
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
      tool coreutils cp --remove-destination ${./sitecustomize.py} "$out/lib/python${version}/sitecustomize.py"
      "$out/bin/python3" -I -S -m compileall -q --invalidation-mode unchecked-hash "$out/lib"
    '';
    passthru = python3Attributes // {
      interpreter = "${pkgs.python3}/bin/python3";
    };
  };
  python3Packages = pythonPackages;
}
