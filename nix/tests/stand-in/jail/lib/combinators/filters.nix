# Filters of system calls.
{ combinators, lib, ... }:
let
  inherit (combinators)
    add-runtime
    compose
    defer
    escape
    include-once
    ;
in
{
  # A file with a classic BPF program, or a program that writes one to its standard output.
  add-seccomp =
    path:
    compose [
      (state: state // { filters = state.filters ++ [ (escape path) ]; })
      (include-once "add-seccomp" (
        defer (
          state:
          add-runtime (lib.concatMapStringsSep "\n" (filter: ''
            if [[ -x ${filter} ]]; then
              exec {FILTER_FD}< <(${filter})
            else
              exec {FILTER_FD}<${filter}
            fi
            RUNTIME_ARGS+=(--add-seccomp-fd "$FILTER_FD")
          '') state.filters) state
        )
      ))
    ];
}
