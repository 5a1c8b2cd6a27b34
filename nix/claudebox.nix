# claudebox ready to run: with what a box has on its PATH, and bubblewrap to make it.
#
# Type: { lib, runCommand, writeShellApplication, bubblewrap, git, nsm, tools, forbidden,
#         extraTools ? [ ] } -> derivation with bin/claudebox
#   nsm        : from ./wrapper.nix: its supervisor makes the box's sockets
#   tools      : from ./boxTools.nix, as `forbidden`
#   extraTools : more packages for the PATH of boxes, before `tools`
#
# Claude Code itself is the caller's: whichever is on PATH.
{
  lib,
  runCommand,
  writeShellApplication,
  bubblewrap,
  git,
  nsm,
  tools,
  forbidden,
  extraTools ? [ ],
}:
let
  # PATH of a box as a file, which there is only if nothing forbidden is on it.
  path =
    runCommand "claudebox-path"
      {
        path = lib.makeBinPath (extraTools ++ [ nsm ] ++ tools);
      }
      ''
        IFS=: read -r -a directories <<<"$path"
        for directory in "''${directories[@]}"; do
          for found in ${lib.concatMapStringsSep " " (pattern: ''"$directory"/${pattern}'') forbidden}; do
            if [ -e "$found" ]; then
              echo "claudebox: $found must not be on PATH in a box, where nothing hands out keys or" \
                "opens other machines. Leave its package out of extraTools." >&2
              exit 1
            fi
          done
        done
        printf %s "$path" >"$out"
      '';
in
writeShellApplication {
  name = "claudebox";
  runtimeInputs = [
    bubblewrap
    git # tells who the user is
  ];
  text = ''
    NSM_BOX_TOOLS=$(<${path})
    export NSM_BOX_TOOLS
    export NSM_BOX_STORE=${builtins.storeDir}
    export NSM_SUPERVISOR=''${NSM_SUPERVISOR:-${nsm}/bin/nsm-supervisor}
    exec ${nsm.unwrapped}/bin/claudebox "$@"
  '';
  passthru = {
    inherit path tools extraTools;
  };
  meta = {
    description = "Claude Code in a box in which it can be let loose";
    inherit (nsm.meta) license platforms;
    mainProgram = "claudebox";
  };
}
