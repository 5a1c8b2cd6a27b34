# Permissions made of permissions.
{ check, lib, ... }:
{
  compose =
    permissions: state:
    lib.foldl' (before: permission: permission before) state (check.list "compose" permissions);

  # After all the others.
  defer =
    permission: state:
    state // { deferred = state.deferred ++ [ (check.permission "defer" permission) ]; };

  include-once =
    key: permission: state:
    if lib.elem key state.once then
      state
    else
      check.permission "include-once" permission (
        state // { once = state.once ++ [ (check.code "include-once" key) ]; }
      );

  # Without everything that came before.
  reset = state: state.initialState;
}
