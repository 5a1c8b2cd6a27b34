# nsm for one user: its programs, its configuration, its environments, and a supervisor that the
# first connection to its socket starts.
#
# Type: { packageFor, presetsFor, claudeboxFor } (./options.nix) -> module of home-manager
shared:
{
  config,
  lib,
  pkgs,
  ...
}:
let
  cfg = config.services.nsm;
  common = import ./options.nix shared { inherit config lib pkgs; };
  # The sandboxes are in a directory that is watched: they are there without a restart.
  program = common.program [ ];
  readUnit = import ./readUnit.nix lib;
  service = readUnit ../../systemd/nsm-supervisor.service;
  socket = readUnit ../../systemd/nsm-supervisor.socket;
  nameOf = sandbox: sandbox.metadata.name or (lib.getName sandbox);
  names = map nameOf cfg.sandboxes;
in
{
  inherit (common) options;

  config = lib.mkIf cfg.enable {
    assertions = [
      {
        assertion = pkgs.stdenv.hostPlatform.isLinux;
        message = (import ../systems.nix).message pkgs.stdenv.hostPlatform.system;
      }
      {
        assertion = lib.allUnique names;
        message =
          "services.nsm.sandboxes: each needs a name of its own, but the names are "
          + "${lib.concatStringsSep ", " names}.";
      }
    ];

    home.packages = common.programs [ ];

    xdg.configFile =
      lib.listToAttrs (
        map (sandbox: {
          name = "nsm/sandboxes/${nameOf sandbox}";
          value.source = sandbox;
        }) cfg.sandboxes
      )
      // lib.optionalAttrs (common.configFile != null) {
        "nsm/config.toml".source = common.configFile;
      };

    systemd.user.sockets.nsm-supervisor = socket // {
      Install.WantedBy = lib.toList socket.Install.WantedBy;
    };
    systemd.user.services.nsm-supervisor = {
      # A switch leaves the sessions alone; `nsm shutdown` or the next login brings the new version.
      Unit = service.Unit // {
        X-SwitchMethod = "keep-old";
      };
      Service = service.Service // {
        ExecStart = "${program}/bin/nsm-supervisor";
        ExecReload = "${program}/bin/nsm reload";
      };
    };
  };
}
