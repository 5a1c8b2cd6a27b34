# What makes a program of a Python project: buildPythonApplication and a Python that is overridden.
#
# Deviates from nixpkgs: only projects built by hatchling; all Python packages are one package, the
# ones of the clone's .venv, under their names and versions; tests are not run; makeWrapper knows
# --set-default and --prefix, and is a program instead of a setup hook, which writes shell scripts.
{ lib, seed }:
pkgs:
let
  packages = pkgs.relocate "python-packages" {
    afterwards = ''
      ${pkgs.python3}/bin/python3 -I -S -m compileall -q --invalidation-mode unchecked-hash "$out/lib"
    '';
  };

  inherit (pkgs.python3) interpreter sitePackages;

  buildPythonApplication =
    {
      pname,
      version,
      src,
      pyproject,
      build-system,
      dependencies,
      pythonImportsCheck,
      doCheck,
      env ? { },
      passthru ? { },
      meta ? { },
    }:
    assert pyproject && !doCheck && map (each: each.pname) build-system == [ "hatchling" ];
    pkgs.runCommand "${pname}-${version}"
      (
        env
        // {
          inherit meta;
          passthru = passthru // {
            inherit pname version dependencies;
          };
          nativeBuildInputs = [ pkgs.python3 ];
          propagated = map toString dependencies;
        }
      )
      ''
        cp -r ${src} source
        chmod -R u+w source
        cd source
        PYTHONPATH=${packages}/${sitePackages} python3 -m hatchling build -t wheel -d ../wheel
        cd ..
        mkdir -p "$out/bin" "$out/${sitePackages}"
        python3 -m zipfile -e wheel/*.whl "$out/${sitePackages}"
        python3 -m compileall -q --invalidation-mode unchecked-hash "$out/${sitePackages}"

        python3 -I - "$out/${sitePackages}"/*.dist-info/entry_points.txt <<'end' |
        import configparser, sys
        scripts = configparser.ConfigParser()
        scripts.read(sys.argv[1])
        for name, place in scripts["console_scripts"].items():
            print(name, *place.split(":"))
        end
        while read -r name module function; do
          cat > "$out/bin/$name" <<end
        #!${interpreter}
        import site
        import sys
        sys.path[1:1] = ["$out/${sitePackages}"]
        site.addsitedir("${packages}/${sitePackages}")
        from $module import $function
        sys.exit($function())
        end
          chmod +x "$out/bin/$name"
        done

        for module in ${toString pythonImportsCheck}; do
          PYTHONPATH=$out/${sitePackages}:${packages}/${sitePackages} python3 -c "import $module"
        done
      '';

  # What comes from the network can be evaluated and looked at.
  notHere =
    name: passthru:
    pkgs.runCommand name { inherit passthru; } ''
      echo "The stand-in for nixpkgs cannot build ${name}: it takes the real nixpkgs." >&2
      exit 1
    '';

  given =
    _:
    lib.mapAttrs (pname: version: packages // { inherit pname version; }) seed.pythonPackages
    // {
      inherit buildPythonApplication;
      buildPythonPackage = attributes: notHere attributes.pname attributes;
      fetchPypi = attributes: notHere "pypi-${attributes.pname}" attributes;
    };

  pythonWith =
    packageOverrides:
    pkgs.python3
    // {
      pkgs = lib.fix (lib.extends packageOverrides given);
      override =
        arguments:
        let
          new = if lib.isFunction arguments then arguments { inherit packageOverrides; } else arguments;
        in
        pythonWith (new.packageOverrides or packageOverrides);
    };
in
{
  python313 = pythonWith (_: _: { });

  makeBinaryWrapper = pkgs.writeShellScriptBin "makeWrapper" ''
    set -e
    program=$1 wrapper=$2
    shift 2
    {
      echo "#!${pkgs.runtimeShell}"
      while [ $# -gt 0 ]; do
        case $1 in
          --set-default)
            printf '[ -n "''${%s+set}" ] || export %s=%q\n' "$2" "$2" "$3"
            shift 3
            ;;
          --prefix)
            printf 'export %s=%q"''${%s:+%s$%s}"\n' "$2" "$4" "$2" "$3" "$2"
            shift 4
            ;;
          *)
            echo "makeWrapper of the stand-in does not know $1" >&2
            exit 1
            ;;
        esac
      done
      printf 'exec %q "$@"\n' "$program"
    } >"$wrapper"
    chmod +x "$wrapper"
  '';
}
