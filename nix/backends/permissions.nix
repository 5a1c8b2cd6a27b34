# What every jail of nsm has, given to jail.nix as its base permissions.
#
# Type: { pkgs } -> combinators -> [Permission]
#
# Without jail.nix's `fake-passwd`, which writes files below the caller's HOME; ./etc.nix has them.
{ pkgs }:
combinators:
let
  raw = combinators.unsafe-add-raw-args;
in
[
  combinators.base
  combinators.bind-nix-store-runtime-closure
  # With an empty environment: bwrap's own can be read in a jail as that of PID 1, and would steer
  # its dynamic linker. ./wrapper.bash sets what starts it. A permission is a function of the jail's
  # state; `cmd` follows `exec`.
  (state: state // { cmd = "-c \"\${NSM_STARTER[@]}\" ${state.cmd}"; })
  (raw "--uid 1000 --gid 1000 --cap-drop ALL --hostname nsm")
  (combinators.bind-pkg "/etc" (import ./etc.nix { inherit pkgs; }))
  (raw "--symlink sh /bin/bash")
  (combinators.set-env "HOME" "/workspace")
  (combinators.set-env "LANG" "C.UTF-8")
  (combinators.set-env "LOGNAME" "user")
  (combinators.set-env "TERM" "dumb")
  (combinators.set-env "TMPDIR" "/workspace")
  (combinators.set-env "USER" "user")
]
