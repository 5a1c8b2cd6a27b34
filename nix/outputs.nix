# The flake's outputs.
#
# Type: { self, nixpkgs, jail-nix, ... } -> attrs
{
  self,
  nixpkgs,
  jail-nix,
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

  packages =
    system:
    let
      pkgs = pkgsFor system;
      library = libraryFor pkgs;
      # As `packages."presets.NAME"`.
      presets = builtins.listToAttrs (
        map (name: {
          name = "presets.${name}";
          value = library.presets.${name};
        }) (builtins.attrNames library.presets)
      );
    in
    presets
    // {
      test-sandbox = library.mkSandbox {
        name = "test-sandbox";
        interpreter_type = "python";
        packages = [ pkgs.python3 ];
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
}
