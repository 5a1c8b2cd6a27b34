# Variables of the jail.
{
  check,
  combinators,
  lib,
  ...
}:
let
  inherit (combinators)
    compose
    escape
    noescape
    unsafe-add-raw-args
    ;
in
rec {
  set-env =
    name: value: state:
    state
    // {
      env = state.env // {
        ${check.variable "set-env" name} = escape value;
      };
    };

  # The caller's: one that is not set ends the script, which runs with `nounset`.
  fwd-env = name: set-env name (noescape "\"\$${check.variable "fwd-env" name}\"");

  try-fwd-env =
    name:
    unsafe-add-raw-args "\${${check.variable "try-fwd-env" name}+--setenv ${name} \"\$${name}\"}";

  add-path = path: state: state // { path = [ (check.code "add-path" path) ] ++ state.path; };

  add-pkg-deps =
    packages:
    compose (map (package: add-path "${lib.getBin package}/bin") (check.packages "add-pkg-deps" packages));
}
