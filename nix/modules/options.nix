# The options that both modules have, and what follows from them.
#
# Type: { packageFor, presetsFor, claudeboxFor }
#       -> { config, lib, pkgs } -> { options, program, programs, configFile }
#   packageFor   : SYSTEM -> derivation (../wrapper.nix)
#   presetsFor   : SYSTEM -> { NAME = artifact }
#   claudeboxFor : SYSTEM -> derivation (../claudebox.nix)
#   program      : [artifact] -> nsm with the presets that are wanted, and those
#   programs     : [artifact] -> that, and claudebox where it is enabled
#   configFile   : config.toml, checked when it is built; null where `settings` is empty
{
  packageFor,
  presetsFor,
  claudeboxFor,
}:
{
  config,
  lib,
  pkgs,
}:
let
  inherit (lib) mkOption types;
  cfg = config.services.nsm;
  inherit (pkgs.stdenv.hostPlatform) system;
  presets = presetsFor system;
  # Without looking at packages: options are listed on every system.
  presetNames = builtins.attrNames (import ../environments { inherit pkgs; });
  format = pkgs.formats.toml { };

  program =
    sandboxes:
    cfg.package.override {
      metadataJson = import ../registryOf.nix (map (name: presets.${name}) cfg.presets ++ sandboxes);
    };
in
{
  inherit program;

  programs =
    sandboxes:
    let
      nsm = program sandboxes;
    in
    [ nsm ]
    ++ lib.optional cfg.claudebox.enable (
      cfg.claudebox.package.override {
        inherit nsm;
        inherit (cfg.claudebox) extraTools;
      }
    );

  options.services.nsm = {
    enable = lib.mkEnableOption "nsm, which runs the code of coding agents in jails";

    package = mkOption {
      type = types.package;
      default = packageFor system;
      defaultText = lib.literalExpression "nsm.packages.\${system}.nsm";
      description = ''
        nsm without environments; {option}`services.nsm.presets` and
        {option}`services.nsm.sandboxes` are added to it. It has to have
        `override { metadataJson = ...; }`.
      '';
    };

    presets = mkOption {
      type = types.listOf (types.enum presetNames);
      default = presetNames;
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

    claudebox = {
      enable = lib.mkEnableOption "claudebox, which runs Claude Code in a box";

      package = mkOption {
        type = types.package;
        default = claudeboxFor system;
        defaultText = lib.literalExpression "nsm.packages.\${system}.claudebox";
        description = ''
          claudebox. It has to have `override { nsm = ...; extraTools = ...; }`, by which it gets
          this nsm with its environments.
        '';
      };

      extraTools = mkOption {
        type = types.listOf types.package;
        default = [ ];
        example = lib.literalExpression "[ pkgs.go pkgs.gopls ]";
        description = ''
          More packages for PATH in boxes. One with gnupg, openssh, age or tailscale is refused when
          it is built. What a box may reach is in `settings.box`.
        '';
      };
    };

    settings = mkOption {
      inherit (format) type;
      default = { };
      example = {
        defaults.timeout_seconds = 60;
        environments.python.memory_mb = 1024;
      };
      description = ''
        {file}`config.toml`; docs/reference/configuration.md has its keys. It is checked by nsm when it is built,
        so that a mistake fails there.
      '';
    };
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
