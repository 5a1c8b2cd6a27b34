# Where nsm's jails run, and what is said elsewhere.
#
# Type: { supported : [String]; unsupported : [String]; message : String -> String;
#         check : String -> String }
#
# `check` gives the system back, or throws. `unsupported` are the other systems that Nix users
# have: their outputs evaluate, so that `nix flake check --all-systems` of whoever depends on this
# flake works, warn, and fail to build (./unsupported.nix).
rec {
  supported = [
    "x86_64-linux"
    "aarch64-linux"
  ];

  unsupported = [
    "x86_64-darwin"
    "aarch64-darwin"
  ];

  message =
    system:
    "nsm: ${system} is not supported: jails are made of Linux namespaces, so nsm runs on "
    + "${builtins.concatStringsSep " and " supported}. On another system, run it in a Linux "
    + "virtual machine or container.";

  check = system: if builtins.elem system supported then system else throw (message system);
}
