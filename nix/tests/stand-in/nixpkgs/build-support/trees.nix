# Trees of links: buildEnv, symlinkJoin, linkFarm.
#
# Deviates from nixpkgs: directories are always made, and only files are links.
{ lib }:
pkgs:
let
  join =
    {
      name,
      paths,
      pathsToLink ? [ "/" ],
      ignoreCollisions,
      postBuild ? "",
      meta ? { },
      passthru ? { },
    }:
    pkgs.runCommand name
      {
        inherit meta;
        passthru = passthru // {
          inherit paths;
        };
      }
      ''
        mkdir -p "$out"
        for path in ${toString paths}; do
          for part in ${lib.escapeShellArgs pathsToLink}; do
            part=$path''${part%/}
            [ -e "$part" ] || continue
            while IFS= read -r -d "" file; do
              target=$out''${file#"$path"}
              if [ -e "$target" ] || [ -L "$target" ]; then
                if ! ${lib.boolToString ignoreCollisions} && ! cmp -s "$target" "$file"; then
                  echo "error: collision between $file and $(readlink "$target")" >&2
                  exit 1
                fi
              else
                mkdir -p "''${target%/*}"
                ln -s "$file" "$target"
              fi
            done < <(find -H "$part" ! -type d -print0)
          done
        done
        ${postBuild}
      '';
in
{
  buildEnv =
    {
      name,
      paths,
      pathsToLink ? [ "/" ],
      ignoreCollisions ? false,
      postBuild ? "",
      meta ? { },
      passthru ? { },
    }:
    join {
      inherit
        ignoreCollisions
        meta
        name
        passthru
        paths
        pathsToLink
        postBuild
        ;
    };

  symlinkJoin =
    {
      name,
      paths,
      postBuild ? "",
      meta ? { },
      passthru ? { },
    }:
    join {
      inherit
        meta
        name
        passthru
        paths
        postBuild
        ;
      ignoreCollisions = true;
    };

  linkFarm =
    name: entries:
    let
      list =
        if lib.isList entries then entries else lib.mapAttrsToList (name: path: { inherit name path; }) entries;
    in
    pkgs.runCommand name { } ''
      mkdir -p "$out"
      ${lib.concatMapStringsSep "\n" (entry: ''
        mkdir -p "$(dirname "$out"/${lib.escapeShellArg entry.name})"
        ln -s ${lib.escapeShellArg "${entry.path}"} "$out"/${lib.escapeShellArg entry.name}
      '') list}
    '';
}
