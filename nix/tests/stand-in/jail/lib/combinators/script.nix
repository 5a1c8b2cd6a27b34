# Parts of the script, and of the command that it becomes.
{ check, lib, ... }:
rec {
  noescape = value: { _noescape = check.code "noescape" value; };
  escape =
    value: value._noescape or (lib.escapeShellArg (check.text "escape" value));

  unsafe-add-raw-args =
    arguments: state:
    state // { cmd = "${state.cmd} ${check.code "unsafe-add-raw-args" arguments}"; };

  add-runtime =
    code: state: state // { runtime = "${state.runtime}\n${check.code "add-runtime" code}\n"; };

  add-cleanup =
    code: state: state // { cleanup = state.cleanup ++ [ (check.code "add-cleanup" code) ]; };

  set-argv =
    arguments: state:
    state // { argv = lib.concatMapStringsSep " " escape (check.list "set-argv" arguments); };

  no-new-session = state: state // { newSession = false; };
  no-die-with-parent = state: state // { dieWithParent = false; };
}
