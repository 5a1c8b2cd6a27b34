# The host's programs as packages.
#
# Deviates from nixpkgs: the host's versions; outputs are not split; `bashInteractive` is `bash`; git
# has only the commands that are built into it; some packages have programs that only say that they
# are not here.
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

  # What can be on PATH, and do nothing there.
  placeholders =
    pkgs:
    lib.mapAttrs
      (
        name: program:
        pkgs.writeShellScriptBin program ''
          echo "${program}: the stand-in for nixpkgs has no ${name}" >&2
          exit 1
        ''
      )
      {
        curl = "curl";
        fd = "fd";
        gnupatch = "patch";
        gnupg = "gpg2";
        less = "less";
        nix = "nix";
        procps = "ps";
        ripgrep = "rg";
        unzip = "unzip";
        which = "which";
        xz = "xz";
      };
in
pkgs:
plain
// placeholders pkgs
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
  git = relocate "git" { };
  gnugrep = relocate "gnugrep" { mainProgram = "grep"; };
  gnused = relocate "gnused" { mainProgram = "sed"; };
  glibc = libraries;
  nodejs = relocate "nodejs" { mainProgram = "node"; };
}
