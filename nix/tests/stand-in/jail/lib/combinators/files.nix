# Mounts, in the order in which they are given.
{
  check,
  combinators,
  lib,
  pkgs,
  ...
}:
let
  inherit (combinators) compose escape unsafe-add-raw-args;

  bind =
    name: option: from: to:
    unsafe-add-raw-args "${option} ${escape (check.text name from)} ${escape (check.text name to)}";
in
rec {
  ro-bind = bind "ro-bind" "--ro-bind";
  rw-bind = bind "rw-bind" "--bind";
  try-ro-bind = bind "try-ro-bind" "--ro-bind-try";
  try-rw-bind = bind "try-rw-bind" "--bind-try";

  readonly = path: ro-bind path path;
  readwrite = path: rw-bind path path;
  try-readonly = path: try-ro-bind path path;
  try-readwrite = path: try-rw-bind path path;

  tmpfs = path: unsafe-add-raw-args "--tmpfs ${escape (check.text "tmpfs" path)}";

  bind-pkg =
    path: package:
    compose [
      (ro-bind "${check.package "bind-pkg" package}" path)
      (state: state // { closures = state.closures ++ [ "${package}" ]; })
    ];

  write-text =
    path: contents:
    bind-pkg path (
      pkgs.writeText "jail-file-${lib.strings.sanitizeDerivationName (escape path)}" (
        check.code "write-text" contents
      )
    );
}
