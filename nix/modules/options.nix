# The options that both modules have, and what follows from them.
#
# Type: { packagesFor, libraryFor } -> { config, lib, pkgs } -> { options, program, configFile }
#   packagesFor : pkgs -> packages (../packages.nix)
#   libraryFor  : pkgs -> library (../lib)
#   program     : nsm with the environments that the options name
#   configFile  : config.toml, checked when it is built; null where `settings` is empty
{ packagesFor, libraryFor }:
{
  config,
  lib,
  pkgs,
}:
let
  inherit (lib) mkOption types;
  cfg = config.services.nsm;
  library = libraryFor pkgs;
  format = pkgs.formats.toml { };
in
{
  options.services.nsm = {
    enable = lib.mkEnableOption "nsm, which runs the code of coding agents in jails";

    package = mkOption {
      type = types.package;
      default = (packagesFor pkgs).nsm;
      defaultText = lib.literalExpression "nsm.packages.\${system}.nsm";
      description = ''
        nsm without environments; {option}`services.nsm.presets` and
        {option}`services.nsm.sandboxes` are added to it. It has to have
        `override { metadataJson = ...; }`.
      '';
    };

    presets = mkOption {
      type = types.listOf (types.enum (builtins.attrNames library.presets));
      default = builtins.attrNames library.presets;
      example = [ "python" ];
      description = ''
        Which of nsm's own environments there are. What is left out is made of the host's own
        interpreter of that name, where it has one.
      '';
    };

    sandboxes = mkOption {
      type = types.listOf types.package;
      default = [ ];
      example = lib.literalExpression ''
        [
          (nsm.lib.mkSandbox {
            inherit pkgs;
            name = "data-science";
            interpreter_type = "python";
            packages = [ (pkgs.python3.withPackages (python: [ python.pandas ])) ];
          })
        ]
      '';
      description = "Environments of your own, made by `nsm.lib.mkSandbox`.";
    };

    settings = mkOption {
      inherit (format) type;
      default = { };
      example = {
        defaults.timeout_seconds = 60;
        environments.python.memory_mb = 1024;
      };
      description = ''
        {file}`config.toml`; docs/interfaces.md has its keys. It is checked by nsm when it is built,
        so that a mistake fails there.
      '';
    };
  };

  program = sandboxes: cfg.package.override {
    metadataJson = import ../registryOf.nix (
      map (name: library.presets.${name}) cfg.presets ++ sandboxes
    );
  };

  configFile =
    let
      text = format.generate "config.toml" cfg.settings;
    in
    if cfg.settings == { } then
      null
    else
      pkgs.runCommand "nsm-config.toml" { } ''
        ${cfg.package}/bin/nsm-supervisor --check-config --config ${text}
        cp ${text} $out
      '';
}
