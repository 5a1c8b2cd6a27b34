# The host's programs as packages.
#
# Deviates from nixpkgs: the host's versions; outputs are not split; `bashInteractive` is `bash`.
{
  lib,
  seed,
  system,
}:
let
  inherit (import ./relocate.nix { inherit lib seed system; }) libraries relocate;

  plain = lib.genAttrs [
    "bc"
    "coreutils"
    "diffutils"
    "findutils"
    "gnugrep"
    "gnused"
    "gnutar"
    "gzip"
    "jq"
    "shadow"
    "shellcheck"
    "tree"
  ] (name: relocate name { });
in
pkgs:
plain
// {
  inherit relocate;

  bash = relocate "bash" { afterwards = ''tool coreutils ln -s bash "$out/bin/sh"''; };
  bashInteractive = pkgs.bash;
  runtimeShell = "${pkgs.bash}/bin/bash";

  bubblewrap = relocate "bubblewrap" { mainProgram = "bwrap"; };

  # Its data are found by a compiled-in path, which is none of the store's.
  file = relocate "file" {
    afterwards = ''
      tool coreutils mv "$out/bin/file" "$out/bin/.file"
      printf '#!%s\nexec %s --magic-file %s "$@"\n' \
        ${pkgs.runtimeShell} "$out/bin/.file" "$out/share/magic.mgc" >"$out/bin/file"
      tool coreutils chmod +x "$out/bin/file"
    '';
  };

  gawk = relocate "gawk" { };
  gnugrep = relocate "gnugrep" { mainProgram = "grep"; };
  gnused = relocate "gnused" { mainProgram = "sed"; };
  glibc = libraries;
  nodejs = relocate "nodejs" { mainProgram = "node"; };
}
