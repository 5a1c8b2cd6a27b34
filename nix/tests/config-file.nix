# The config.toml that the modules make of `settings`: building it checks it.
#
# Type: { nixpkgs, jailLib, settings } -> derivation
#   nixpkgs : path of a nixpkgs
{
  nixpkgs,
  jailLib,
  settings,
}:
let
  pkgs = import nixpkgs { system = builtins.currentSystem; };
  library = import ../lib { inherit pkgs jailLib; };
  package =
    (import ../packages.nix {
      inherit pkgs library;
      comma = pkgs.jq;
    }).nsm;
  modules = import ./module-system.nix { inherit pkgs; };
in
(import ../modules/options.nix {
  packageFor = _: package;
  presetsFor = _: library.presets;
  claudeboxFor = _: throw "none is asked for";
} (modules // { config.services.nsm = { inherit package settings; }; })).configFile
