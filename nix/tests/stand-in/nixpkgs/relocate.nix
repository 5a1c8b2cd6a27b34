# Programs of the seed as packages of their own: copied into the store, with their interpreter (the
# dynamic loader) and library path there, so that a closure is real and nothing of /usr is used.
#
#   { lib, seed, system } -> { libraries :: derivation, relocate :: name -> options -> derivation }
#
# Deviates from nixpkgs: all shared libraries are one package, the C library among them.
{
  lib,
  seed,
  system,
}:
let
  loader = "${seed.path}/lib/${seed.loader}";

  # A builder of what the seed alone can: its bash, started through its own loader.
  fromSeed =
    name: script:
    derivation {
      inherit name system;
      seed = seed.path;
      inherit loader;
      builder = loader;
      args = [
        "--library-path"
        "${seed.path}/lib"
        "${seed.path}/bash/bin/bash"
        "-euc"
        # The last ":" keeps bash from replacing itself by the last command: coreutils close their
        # standard error at exit, and Nix takes that for the end of the builder and kills it.
        ''
          tool() {
            local package=$1 name=$2
            shift 2
            "$loader" --library-path "$seed/lib" "$seed/$package/bin/$name" "$@"
          }
          patchelf=$seed/patchelf/bin/patchelf
          ${script}
          :''
      ];
    };

  libraries = fromSeed "host-libraries" ''
    tool coreutils mkdir "$out"
    tool coreutils cp -r "$seed/lib" "$out/lib"
    tool coreutils chmod -R u+w "$out"
    for file in "$out"/lib/*; do
      case $file in
        */${seed.loader} | */libc.so.*) continue ;;
      esac
      "$patchelf" --force-rpath --set-rpath "$out/lib" "$file"
    done
  '';
in
{
  inherit libraries;

  # What is missing on the host is missed when it is built, not when it is evaluated.
  relocate =
    name:
    {
      pname ? name,
      mainProgram ? pname,
      afterwards ? "",
      passthru ? { },
    }:
    let
      package = fromSeed "${pname}-host" (
        if lib.elem name seed.missing then
          ''
            echo "The stand-in for nixpkgs has no ${pname}: the host had none that works outside of" \
              "/usr when its programs were collected (tools/standin.py)." >&2
            exit 1
          ''
        else
          ''
            tool coreutils cp -r "$seed/${name}" "$out"
            tool coreutils chmod -R u+w "$out"
            tool findutils find "$out" -type f '(' -path '*/bin/*' -o -name '*.so' -o -name '*.so.*' ')' -print0 |
            while IFS= read -r -d "" file; do
              magic=
              IFS= read -r -n 4 -d "" magic <"$file" || true
              [ "$magic" = $'\x7fELF' ] || continue
              set -- --force-rpath --set-rpath ${libraries}/lib
              if "$patchelf" --print-interpreter "$file" >/dev/null 2>&1; then
                set -- "$@" --set-interpreter ${libraries}/lib/${seed.loader}
              elif [[ $file != *.so* ]]; then
                continue # static
              fi
              "$patchelf" "$@" "$file"
            done
            ${afterwards}
          ''
      );
    in
    package
    // {
      inherit pname;
      version = "host";
      meta = { inherit mainProgram; };
    }
    // passthru;
}
