# Tests of ../../modules: what the modules make of options. The options themselves take the module
# system of the real nixpkgs: by hand, they were evaluated with it (August 2026).
{ pkgs, library }:
let
  modules = import ../module-system.nix { inherit pkgs; };
  inherit (modules) lib;

  package = lib.makeOverridable (
    {
      metadataJson ? null,
    }:
    pkgs.runCommand "nsm" { passthru = { inherit metadataJson; }; } ""
  ) { };

  shared = {
    packageFor = _: package;
    presetsFor = _: library.presets;
    claudeboxFor = _: claudebox;
  };

  claudebox = lib.makeOverridable (
    {
      nsm ? null,
      extraTools ? [ ],
    }:
    pkgs.runCommand "claudebox" { passthru = { inherit nsm extraTools; }; } ""
  ) { };


  definitions =
    module: options:
    import module shared {
      inherit (modules) lib pkgs;
      config = {
        nix.package = pkgs.nix;
        security.allowUserNamespaces = true;
        services.nsm = {
          enable = true;
          inherit package;
          presets = [ "python" ];
          sandboxes = [ ];
          settings = { };
          claudebox = {
            enable = false;
            package = claudebox;
            extraTools = [ ];
          };
        }
        // options;
      };
    };
  user = options: (definitions ../../modules/home-manager.nix options).config;
  system = options: (definitions ../../modules/nixos.nix options).config;

  sandbox = library.mkSandbox {
    name = "words";
    interpreter_type = "bash";
    packages = [ ];
  };
  environmentsOf =
    program:
    builtins.attrNames
      (builtins.fromJSON (builtins.unsafeDiscardStringContext program.metadataJson)).environments;
  failed =
    config: map (each: each.message) (builtins.filter (each: !each.assertion) config.assertions);
in
{
  testOptions = {
    expr = builtins.attrNames (definitions ../../modules/nixos.nix { }).options.services.nsm;
    expected = [
      "claudebox"
      "enable"
      "package"
      "presets"
      "sandboxes"
      "settings"
    ];
  };
  testNothingUnlessEnabled = {
    expr = map (module: module { enable = false; }) [
      user
      system
    ];
    expected = [
      { }
      { }
    ];
  };

  testUser =
    let
      config = user {
        sandboxes = [ sandbox ];
        settings.defaults.timeout_seconds = 60;
      };
      service = config.systemd.user.services.nsm-supervisor;
      program = builtins.head config.home.packages;
    in
    {
      expr = {
        environments = environmentsOf program;
        files = builtins.attrNames config.xdg.configFile;
        linked = config.xdg.configFile."nsm/sandboxes/words".source == sandbox;
        starts = service.Service.ExecStart == "${program}/bin/nsm-supervisor";
        kept = service.Unit.X-SwitchMethod;
        inherit (service.Service) Type;
        wantedBy = config.systemd.user.sockets.nsm-supervisor.Install.WantedBy;
        failed = failed config;
      };
      expected = {
        environments = [ "python" ];
        files = [
          "nsm/config.toml"
          "nsm/sandboxes/words"
        ];
        linked = true;
        starts = true;
        kept = "keep-old";
        Type = "notify";
        wantedBy = [ "sockets.target" ];
        failed = [ ];
      };
    };
  testClaudebox =
    let
      options.claudebox = {
        enable = true;
        package = claudebox;
        extraTools = [ pkgs.tree ];
      };
      of = programs: {
        names = map (each: each.name) programs;
        environments = environmentsOf (builtins.elemAt programs 1).nsm;
        extraTools = map (each: each.name) (builtins.elemAt programs 1).extraTools;
      };
      expected = {
        names = [
          "nsm"
          "claudebox"
        ];
        environments = [ "python" ];
        extraTools = [ pkgs.tree.name ];
      };
    in
    {
      expr = [
        (of (user options).home.packages)
        (of (system options).environment.systemPackages)
      ];
      expected = [
        expected
        expected
      ];
    };
  testUserHasNoConfigurationUnlessSet = {
    expr = (user { }).xdg.configFile;
    expected = { };
  };
  testUserNamesTwice = {
    expr = failed (user {
      sandboxes = [
        sandbox
        sandbox
      ];
    });
    expected = [
      "services.nsm.sandboxes: each needs a name of its own, but the names are words, words."
    ];
  };

  testSystem =
    let
      config = system {
        sandboxes = [ sandbox ];
        settings.defaults.timeout_seconds = 60;
      };
      service = config.systemd.user.services.nsm-supervisor;
      program = builtins.head config.environment.systemPackages;
      started = builtins.elemAt service.serviceConfig.ExecStart 1;
    in
    {
      expr = {
        environments = environmentsOf program;
        units = config.systemd.packages == [ program ];
        wantedBy = config.systemd.user.sockets.nsm-supervisor.wantedBy;
        restarts = service.restartIfChanged;
        replaced = builtins.head service.serviceConfig.ExecStart;
        starts = lib.hasPrefix "${program}/bin/nsm-supervisor --config " started;
        failed = failed config;
      };
      expected = {
        environments = [
          "python"
          "words"
        ];
        units = true;
        wantedBy = [ "sockets.target" ];
        restarts = false;
        replaced = "";
        starts = true;
        failed = [ ];
      };
    };
}
