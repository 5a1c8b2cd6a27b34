# Stand-in for the nix-index-database flake, of which nsm takes one package.
# `--override-input nix-index-database path:...` puts it in its place.
#
# Deviates from it: there is no database, and `,` says which one it would look into.
{
  description = "A stand-in for nix-index-database, for tests";

  # The flakes that depend on it let it follow theirs.
  inputs.nixpkgs.url = "nixpkgs";

  outputs =
    { nixpkgs, ... }:
    let
      packages = pkgs: {
        comma-with-db = pkgs.writeTextFile {
          name = "comma-with-db";
          destination = "/bin/,";
          executable = true;
          text = ''
            #!${pkgs.runtimeShell}
            export NIX_INDEX_DATABASE=${pkgs.writeText "nix-index-database" "a database\n"}
            echo ", of the stand-in would look for $1 in $NIX_INDEX_DATABASE"
          '';
        };
      };
    in
    {
      packages = builtins.mapAttrs (_: packages) nixpkgs.legacyPackages;
    };
}
