# A jailed program: a shell script that gathers bwrap's arguments and becomes bwrap.
#
# A permission is a function of the jail's state. Of the state's fields, those that jail.nix has
# have the same meaning here:
#
#   cmd      the command so far: bwrap and its arguments, as shell code
#   runtime  shell code that runs on the host, before bwrap; may append to RUNTIME_ARGS
#   entry    the program in the jail, as shell code; argv: its arguments
#   path     the jail's PATH; env: its other variables, as shell code
{
  pkgs,
  additionalCombinators ? _: { },
  basePermissions ? combinators: [
    combinators.base
    combinators.bind-nix-store-runtime-closure
    combinators.fake-passwd
  ],
  bubblewrapPackage ? pkgs.bubblewrap,
}:
let
  inherit (pkgs) lib;

  own = import ./combinators { inherit pkgs; };
  combinators = own // additionalCombinators own;

  listed =
    permissions:
    if permissions == null then
      [ ]
    else if builtins.isFunction permissions then
      permissions combinators
    else if builtins.isList permissions then
      permissions
    else
      throw "jail.nix's stand-in: permissions are a function, a list or null, not a ${builtins.typeOf permissions}";

  apply = lib.foldl' (
    state: permission:
    let
      next = permission state;
    in
    if builtins.isAttrs next then
      next
    else
      throw "jail.nix's stand-in: a permission gave a ${builtins.typeOf next} instead of the jail's state; does it lack an argument?"
  );

  # bwrap's arguments that follow from the whole state.
  conclude =
    state:
    let
      shared = state.namespaces;
      unshare = map (name: "--unshare-${name}") (
        lib.subtractLists shared [
          "user"
          "ipc"
          "pid"
          "net"
          "uts"
          "cgroup"
        ]
      );
      variables =
        state.env
        // lib.optionalAttrs (state.path != [ ]) {
          PATH = lib.escapeShellArg (lib.concatStringsSep ":" state.path);
        };
      setenv = lib.mapAttrsToList (name: value: "--setenv ${name} ${value}") variables;
    in
    lib.concatStringsSep " " (
      [ state.cmd ]
      ++ unshare
      ++ lib.optional state.newSession "--new-session"
      ++ lib.optional state.dieWithParent "--die-with-parent"
      ++ setenv
    );

  script =
    state:
    let
      tidies = state.cleanup != [ ];
    in
    lib.concatStringsSep "\n" (
      [ "RUNTIME_ARGS=()" ]
      ++ lib.optionals tidies (
        [ "tidy() {" ]
        ++ state.cleanup
        ++ [
          "}"
          "trap tidy EXIT"
        ]
      )
      ++ [
        state.runtime
        "${lib.optionalString (!tidies) "exec "}${conclude state} \"\${RUNTIME_ARGS[@]}\" -- ${state.entry} ${state.argv}"
      ]
    );
in
{
  inherit combinators;

  __functor =
    _: name: program: permissions:
    let
      start = {
        inherit name;
        cmd = lib.getExe bubblewrapPackage;
        entry = if builtins.isString program then lib.escapeShellArg program else lib.getExe program;
        argv = "\"$@\"";
        runtime = "";
        path = [ ];
        env = { };
        hostname = "jail";
        newSession = true;
        dieWithParent = true;
        namespaces = [ ];
        cleanup = [ ];
        once = [ ];
        deferred = [ ];
        closures = [ ];
        filters = [ ];
        initialState = start;
      };
      given = apply start (listed basePermissions ++ listed permissions);
      state = apply given given.deferred;
    in
    pkgs.writeShellApplication {
      inherit name;
      text = script state;
      runtimeInputs = [ pkgs.coreutils ];
    };
}
