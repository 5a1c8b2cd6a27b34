# A package in the place of nsm on systems that it does not run on: evaluating it warns, building it
# fails, both with what to do.
#
# Type: String -> derivation
system:
let
  message = (import ./systems.nix).message system;
in
builtins.trace "warning: ${message}" (derivation {
  name = "nsm-unsupported";
  inherit system message;
  builder = "/bin/sh";
  args = [
    "-c"
    "echo \"$message\" >&2; exit 1"
  ];
})
