# nsm ready to run: its programs with what they need around them, and the units of systemd.
#
# Type: { lib, runCommand, makeBinaryWrapper, bubblewrap, nsm-unwrapped, metadataJson ? null }
#       -> derivation
#   metadataJson : environments that the supervisor has from the start, as lib.fromToml's
#                  `metadataJson`; the user's own NIX_SANDBOX_METADATA goes before it
#   out/bin/{nsm,nsm-mcp,nsm-supervisor}
#   out/share/systemd/user/nsm-supervisor.{service,socket}
{
  lib,
  runCommand,
  makeBinaryWrapper,
  bubblewrap,
  nsm-unwrapped,
  metadataJson ? null,
}:
let
  inherit (nsm-unwrapped) python;

  # Started for every window of every editor, needs the standard library and nsm only: so no
  # wrapper, no site-packages of others, no `site` (a third of the start of a bare Python).
  shim = ''
    #!${python.interpreter} -IS
    import os
    import sys

    sys.path.append("${nsm-unwrapped}/${python.sitePackages}")
    os.environ.setdefault("NSM_SUPERVISOR", "@out@/bin/nsm-supervisor")

    from nsm.shim import main

    sys.exit(main())
  '';
in
runCommand "nsm-${nsm-unwrapped.version}"
  {
    nativeBuildInputs = [ makeBinaryWrapper ];
    inherit shim;
    passAsFile = [ "shim" ];
    passthru = {
      inherit (nsm-unwrapped) python version;
      inherit metadataJson;
      unwrapped = nsm-unwrapped;
    };
    meta = nsm-unwrapped.meta;
  }
  ''
    # home-manager looks into share for units, NixOS into lib.
    mkdir -p $out/bin $out/share/systemd/user $out/lib/systemd
    ln -s ../../share/systemd/user $out/lib/systemd/user

    makeWrapper ${nsm-unwrapped}/bin/nsm-supervisor $out/bin/nsm-supervisor \
      --prefix PATH : ${lib.makeBinPath [ bubblewrap ]} \
      ${
        lib.optionalString (
          metadataJson != null
        ) "--set-default NIX_SANDBOX_METADATA ${lib.escapeShellArg metadataJson}"
      }

    # Who starts a supervisor starts that one, with its surroundings. `nsm box` makes jails itself.
    makeWrapper ${nsm-unwrapped}/bin/nsm $out/bin/nsm \
      --prefix PATH : ${lib.makeBinPath [ bubblewrap ]} \
      --set-default NSM_SUPERVISOR $out/bin/nsm-supervisor
    sed "s|@out@|$out|" "$shimPath" > $out/bin/nsm-mcp
    chmod +x $out/bin/nsm-mcp
    # What it imports is there, and nothing but the standard library is needed.
    $out/bin/nsm-mcp --version

    cp ${../systemd}/nsm-supervisor.socket $out/share/systemd/user/
    sed "s|^ExecStart=nsm-supervisor$|ExecStart=$out/bin/nsm-supervisor|
         s|^ExecReload=nsm reload$|ExecReload=$out/bin/nsm reload|" \
      ${../systemd}/nsm-supervisor.service > $out/share/systemd/user/nsm-supervisor.service
    grep --quiet "^ExecStart=$out/bin/nsm-supervisor$" \
      $out/share/systemd/user/nsm-supervisor.service
    grep --quiet "^ExecReload=$out/bin/nsm reload$" \
      $out/share/systemd/user/nsm-supervisor.service
  ''
