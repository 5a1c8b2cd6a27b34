# stdenv: what it says about the platform, and the programs that every builder has.
#
# Deviates from nixpkgs: no phases, no compiler, no setup hooks, no cross builds. `mkDerivation` builds a
# `buildCommand`; anything else it evaluates, and the build fails with a message.
{ lib, system }:
pkgs:
let
  isLinux = lib.hasSuffix "-linux" system;
  isDarwin = lib.hasSuffix "-darwin" system;
  hostPlatform = {
    inherit isDarwin isLinux system;
    canExecute = other: other.system == system;
    isAarch64 = lib.hasPrefix "aarch64-" system;
    isx86_64 = lib.hasPrefix "x86_64-" system;
    parsed.cpu.name = lib.head (lib.splitString "-" system);
    parsed.kernel.name = lib.last (lib.splitString "-" system);
  };
  stdenv = {
    inherit hostPlatform isDarwin isLinux system;
    buildPlatform = hostPlatform;
    shell = pkgs.runtimeShell;
    initialPath = [
      pkgs.bash
      pkgs.coreutils
      pkgs.gnused
      pkgs.gnugrep
      pkgs.gawk
      pkgs.findutils
      pkgs.diffutils
      pkgs.gnutar
      pkgs.gzip
    ];
    mkDerivation =
      given:
      let
        attributes = if lib.isFunction given then lib.fix given else given;
        name = attributes.name or "${attributes.pname}-${attributes.version}";
        command =
          attributes.buildCommand or ''
            echo "The stand-in for nixpkgs has no build phases: ${name} needs the real nixpkgs." >&2
            exit 1
          '';
      in
      pkgs.runCommand name (lib.removeAttrs attributes [
        "buildCommand"
        "name"
        "pname"
        "version"
      ]) command
      // lib.optionalAttrs (attributes ? pname) { inherit (attributes) pname version; };
  };
in
{
  inherit stdenv hostPlatform;
  inherit (stdenv) buildPlatform;
  stdenvNoCC = stdenv;
  buildPackages = pkgs;
}
