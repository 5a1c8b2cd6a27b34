# mkShell: a derivation that `nix develop` and `nix print-dev-env` make a shell of.
#
# Deviates from nixpkgs: its `stdenv` sets PATH and nothing else; no setup hooks, no compiler, no
# inputsFrom. It is for shells only: building it fails, with a message that says so.
{ lib, system }:
pkgs:
let
  # What nix sources before it looks at what there is (get-env.sh of nix).
  setup = pkgs.runCommand "stdenv-setup" { } ''
    mkdir $out
    cat > $out/setup <<'END'
    export PATH=
    for each in $nativeBuildInputs $buildInputs ${toString pkgs.stdenv.initialPath}; do
      PATH=$PATH''${PATH:+:}$each/bin
    done
    unset each
    END
  '';
in
{
  mkShell =
    {
      name ? "nix-shell",
      packages ? [ ],
      nativeBuildInputs ? [ ],
      buildInputs ? [ ],
      shellHook ? "",
      ...
    }@attributes:
    derivation (
      lib.removeAttrs attributes [ "packages" ]
      // {
        inherit
          name
          system
          buildInputs
          shellHook
          ;
        nativeBuildInputs = packages ++ nativeBuildInputs;
        outputs = [ "out" ]; # nix looks for what to write to in it
        stdenv = setup;
        builder = pkgs.runtimeShell;
        args = [
          "-c"
          "echo 'The stand-in for nixpkgs makes shells that can be entered, not built.' >&2; exit 1"
        ];
      }
    );
}
