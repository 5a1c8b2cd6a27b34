# runCommand: a builder that is a shell script.
#
# Deviates from nixpkgs: only PATH is set up, there are no setup hooks.
{ lib, system }:
pkgs:
let
  # Not for the builder: what nixpkgs keeps from it, too.
  withheld = [
    "allowSubstitutes"
    "buildInputs"
    "checkPhase"
    "meta"
    "nativeBuildInputs"
    "passthru"
    "preferLocalBuild"
    "propagatedBuildInputs"
  ];

  runCommand =
    name: attributes: script:
    let
      path = lib.makeBinPath (
        (attributes.nativeBuildInputs or [ ])
        ++ (attributes.buildInputs or [ ])
        ++ pkgs.stdenv.initialPath
      );
      # Older versions of Nix name the files of structured attributes as they are called outside of
      # the build's sandbox.
      prologue = ''
        if [ -n "''${NIX_BUILD_TOP-}" ] && [ -e "$NIX_BUILD_TOP/.attrs.sh" ]; then
          export NIX_ATTRS_SH_FILE=$NIX_BUILD_TOP/.attrs.sh NIX_ATTRS_JSON_FILE=$NIX_BUILD_TOP/.attrs.json
        fi
        if [ -n "''${NIX_ATTRS_SH_FILE-}" ]; then
          . "$NIX_ATTRS_SH_FILE"
          for output in "''${!outputs[@]}"; do
            export "$output=''${outputs[$output]}"
          done
        fi
        set -e -o pipefail
        export PATH=${path} HOME=/homeless-shelter TERM=dumb
      '';
    in
    derivation (
      lib.removeAttrs attributes withheld
      // {
        inherit name system;
        builder = pkgs.runtimeShell;
        # The last ":": see relocate.nix.
        args = [
          "-c"
          "${prologue}\n${script}\n:\n"
        ];
      }
    )
    // {
      meta = attributes.meta or { };
      passthru = attributes.passthru or { };
    }
    // (attributes.passthru or { });
in
{
  inherit runCommand;
  runCommandLocal = runCommand;
}
