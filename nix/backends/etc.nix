# /etc of a jail: who and where the code is, without a word about the host. The same files as in
# jails of the host's own interpreters (nsmd.jail.arguments.SYNTHETIC_FILES); tests/nix compares.
#
# Type: { pkgs } -> derivation
{ pkgs }:
let
  inherit (pkgs) lib;

  files = {
    passwd = ''
      user:x:1000:1000:user:/workspace:/bin/bash
      nobody:x:65534:65534:nobody:/:/usr/sbin/nologin
    '';
    group = ''
      user:x:1000:
      nogroup:x:65534:
    '';
    hosts = ''
      127.0.0.1 localhost nsm
      ::1 localhost
    '';
    # Whoever owns the project.
    gitconfig = "[safe]\n\tdirectory = *\n";
    # Files only: a look-up of a name fails at once instead of waiting for a resolver.
    "nsswitch.conf" = ''
      passwd: files
      group: files
      hosts: files
    '';
  };
in
pkgs.runCommand "nsm-etc" { passthru = { inherit files; }; } (
  "mkdir $out\n"
  + lib.concatStringsSep "\n" (
    lib.mapAttrsToList (
      name: text: "printf %s ${lib.escapeShellArg text} > $out/${lib.escapeShellArg name}"
    ) files
  )
)
