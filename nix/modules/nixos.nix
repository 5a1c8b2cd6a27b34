# nsm for every user of a NixOS system: its programs, and for each user a supervisor of their own
# that the first connection to their socket starts.
#
# Type: { packageFor, presetsFor, claudeboxFor } (./options.nix) -> module of NixOS
#
# Users have a configuration and a sandbox directory of their own, unless `settings` is set: then
# that is everybody's configuration.
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
  program = common.program cfg.sandboxes;
in
{
  inherit (common) options;

  config = lib.mkIf cfg.enable {
    assertions = [
      {
        assertion = config.security.allowUserNamespaces;
        message =
          "services.nsm: jails are made of user namespaces, which security.allowUserNamespaces = "
          + "false forbids. Remove that, or services.nsm.enable.";
      }
    ];

    environment.systemPackages = common.programs cfg.sandboxes;

    # The units of the package, with what follows on top.
    systemd.packages = [ program ];
    systemd.user.sockets.nsm-supervisor.wantedBy = [ "sockets.target" ];
    systemd.user.services.nsm-supervisor = {
      # A switch leaves the sessions alone; `nsm shutdown` or the next login brings the new version.
      restartIfChanged = false;
      path = [ config.nix.package ]; # for `nsm env add`
      serviceConfig = lib.mkIf (common.configFile != null) {
        ExecStart = [
          "" # instead of the package's, not after it
          "${program}/bin/nsm-supervisor --config ${common.configFile}"
        ];
      };
    };
  };
}
