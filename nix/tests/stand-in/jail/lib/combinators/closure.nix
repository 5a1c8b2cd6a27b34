# The store paths that the jailed program needs, each bound by itself, instead of the whole store.
{ combinators, pkgs, ... }:
let
  inherit (combinators)
    add-runtime
    compose
    defer
    include-once
    unsafe-add-raw-args
    ;
in
{
  # Its arguments come from a file: they may be more than a command line can hold.
  bind-nix-store-runtime-closure = include-once "bind-nix-store-runtime-closure" (
    defer (
      state:
      let
        roots = pkgs.writeText "${state.name}-roots" (
          builtins.concatStringsSep "\n" (
            state.closures
            ++ state.path
            ++ [
              state.entry
              state.argv
            ]
          )
        );
        binds = pkgs.runCommand "${state.name}-binds" { } ''
          while read -r path; do
            printf '%s\0' --ro-bind "$path" "$path"
          done <${pkgs.closureInfo { rootPaths = [ roots ]; }}/store-paths >"$out"
        '';
      in
      compose [
        (add-runtime "exec {STORE_BINDS_FD}<${binds}")
        (unsafe-add-raw-args "--args \"$STORE_BINDS_FD\"")
      ] state
    )
  );
}
