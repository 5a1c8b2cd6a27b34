# The flake's outputs.
#
# Type: { self, nixpkgs, jail-nix, nix-index-database, ... } -> attrs
{
  self,
  nixpkgs,
  jail-nix,
  nix-index-database,
  ...
}:
let
  systems = import ./systems.nix;

  # Type: [String] -> (String -> value) -> { SYSTEM = value }
  each =
    names: make:
    builtins.listToAttrs (
      map (system: {
        name = system;
        value = make system;
      }) names
    );

  pkgsFor = system: nixpkgs.legacyPackages.${system};

  libraryFor =
    pkgs:
    import ./lib {
      inherit pkgs;
      jailLib = jail-nix.lib;
    };

  packagesFor =
    pkgs:
    import ./packages.nix {
      inherit pkgs;
      library = libraryFor pkgs;
      comma = nix-index-database.packages.${pkgs.stdenv.hostPlatform.system}.comma-with-db;
      # A clone with changes that are not committed has no commit.
      commit = self.rev or "";
    };

  # What the modules take from the flake, made of the nixpkgs that it pins.
  shared = {
    packageFor = system: (packagesFor (pkgsFor system)).nsm;
    claudeboxFor = system: (packagesFor (pkgsFor system)).claudebox;
    presetsFor = system: (libraryFor (pkgsFor system)).presets;
  };

  homeModules.default = import ./modules/home-manager.nix shared;

  # Programs for `nix run FLAKE#NAME`, which is what an editor's configuration may say.
  apps = system: import ./apps.nix { inherit (packagesFor (pkgsFor system)) claudebox default; };

  packages =
    system:
    let
      pkgs = pkgsFor system;
      library = libraryFor pkgs;
      own = packagesFor pkgs;
      # As `packages."presets.NAME"`.
      presets =
        let
          all = library.presets // library.olderPresets;
        in
        builtins.listToAttrs (
          map (name: {
            name = "presets.${name}";
            value = all.${name};
          }) (builtins.attrNames all)
        );
    in
    presets
    // {
      inherit (own)
        claudebox
        default
        nsm
        nsm-unwrapped
        ;
      test-sandbox = library.mkSandbox {
        name = "test-sandbox";
        interpreter_type = "python";
        packages = [ (import ./lib/python.nix { inherit pkgs; }) ];
      };
    };
in
{
  lib = import ./lib/flake.nix { inherit libraryFor; };

  packages =
    each systems.supported packages
    // each systems.unsupported (system: {
      default = import ./unsupported.nix system;
    });

  apps = each systems.supported apps;

  overlays.default = import ./overlay.nix { inherit libraryFor packagesFor; };

  # `homeModules` is the newer name.
  inherit homeModules;
  homeManagerModules = homeModules;
  nixosModules.default = import ./modules/nixos.nix shared;

  devShells = each systems.supported (system: {
    default = import ./devshell.nix { pkgs = pkgsFor system; };
  });

  # What lib.fromToml makes of the example, for a look: `nix eval .#debug.x86_64-linux.metadata`.
  debug = each systems.supported (
    system:
    let
      library = libraryFor (pkgsFor system);
      fromToml = library.fromToml { } ../config.example.toml;
    in
    {
      inherit fromToml;
      inherit (fromToml) environments metadata;
      inherit (library) presets;
    }
  );

  formatter = each systems.supported (system: (pkgsFor system).nixfmt-tree);

  checks = each systems.supported (
    system:
    let
      own = packages system;
    in
    {
      inherit (own) claudebox default test-sandbox;
      unit-tests = import ./tests/unit/check.nix {
        pkgs = pkgsFor system;
        tests = import ./tests/unit {
          pkgs = pkgsFor system;
          jailLib = jail-nix.lib;
        };
      };
      # Built and run wherever there is KVM, but never yet by those who wrote it.
      vm-not-run-here = import ./tests/vm.nix {
        pkgs = pkgsFor system;
        module = self.nixosModules.default;
        sandbox = own.test-sandbox;
      };
    }
  );
}
