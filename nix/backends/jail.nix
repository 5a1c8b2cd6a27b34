# The jail backend: programs that run an environment in bubblewrap, made by jail.nix.
#
# Type: { pkgs, jail } -> { mkJailedEnv, mkSessionJailedEnv, mkTemplateJailedEnv }
#   jail : what `jail-nix.lib.extend` gives, with ./permissions.nix as its base permissions
#
# All three are one jail: no network, the runtime closure instead of /nix/store, nothing of the
# caller's environment, a uid without a name on the host, no capabilities. What the caller may ask
# of it at run time is in ./wrapper.bash, who uses it in docs/reference/formats.md.
{ pkgs, jail }:
let
  inherit (pkgs) lib;

  filter = import ../lib/filter.nix { inherit pkgs; };

  # bwrap takes descriptors since 0.10; with older ones the project goes by its path.
  bindsDescriptors = builtins.compareVersions (pkgs.bubblewrap.version or "0") "0.10" >= 0;

  # What the wrapper says about itself to ./wrapper.bash.
  settings =
    mode:
    lib.concatStringsSep "\n" (
      lib.mapAttrsToList (name: value: "${name}=${lib.escapeShellArg value}") {
        NSM_MODE = mode;
        NSM_STORE = builtins.storeDir;
        NSM_BINDS_DESCRIPTORS = if bindsDescriptors then "yes" else "no";
      }
    );

  # Type: { mode : "run" | "session" | "template", env : derivation, entry : String }
  #       | { mode, env, agent : derivation, argv : [String] }
  #       -> derivation with bin/run, bin/session-run or bin/template-run
  mkJail =
    {
      mode,
      env,
      agent ? null,
      entry ? "python3", # replaced below
      argv ? [ ],
    }:
    let
      name = if mode == "run" then "run" else "${mode}-run";
    in
    jail name entry (
      combinators:
      let
        raw = combinators.unsafe-add-raw-args;
        isTemplate = mode == "template";
      in
      [
        # Behind the environment, what it does not have itself.
        (combinators.add-pkg-deps [
          pkgs.bash
          env
        ])
        (raw "--chdir ${if isTemplate then "/" else "/workspace"}")
        (combinators.add-runtime (settings mode + "\n" + builtins.readFile ./wrapper.bash))
      ]
      ++ lib.optionals (!isTemplate) [
        # Before the closure is bound, in case the store is below /tmp. --dev leaves /dev/shm on its
        # own unbounded file system, and the base's others have no size either.
        (raw "--perms 1777 --size \"$NSM_SHM_BYTES\" --tmpfs /dev/shm")
        (raw "--perms 1777 --size \"$NSM_TMP_BYTES\" --tmpfs /tmp")
        (raw "--perms 0755 --size \"$NSM_WORKSPACE_BYTES\" --tmpfs /workspace")
        # Forks of a template make namespaces, and then shut them off and install the filter.
        (raw "--disable-userns")
        (combinators.add-seccomp filter)
      ]
      # Killed with its starter, as a program in a terminal; a session belongs to whoever holds its
      # channel, and the signal would come when the thread that started it ends.
      ++ lib.optional (mode != "run") combinators.no-die-with-parent
      # In place of bwrap's own, which has no filter: the agent or the runner. Both reap what code
      # leaves behind. A template's forks outlive it, and cannot see its PID 1.
      ++ lib.optional (!isTemplate) (raw "--as-pid-1")
      ++ lib.optionals (agent != null) [
        (combinators.set-argv (argv ++ [ (combinators.noescape "\"$@\"") ]))
        # A path that only the build of the agent knows.
        (combinators.add-runtime "read -r NSM_PYTHON <${agent}/python")
        (state: state // { entry = "\"$NSM_PYTHON\""; })
      ]
    );
in
{
  # One execution: code on standard input, the exit status is its.
  #
  # Type: { name : String, env : derivation, interpreter : String,
  #         stdinMode : "arg" | "pipe" } -> derivation with bin/run
  #   interpreter : words of a command; the code becomes its last argument or its standard input
  mkJailedEnv =
    {
      name,
      env,
      interpreter,
      stdinMode ? "arg",
      ...
    }:
    mkJail {
      mode = "run";
      inherit env;
      entry = lib.getExe (
        import ../lib/runner.nix { inherit pkgs; } { inherit name interpreter stdinMode; }
      );
    };

  # The agent, PID 1 of the jail; its frames on standard input and output, its arguments passed on.
  #
  # Type: { name : String, env : derivation, agent : derivation, ... } -> derivation with bin/session-run
  mkSessionJailedEnv =
    { env, agent, ... }:
    mkJail {
      mode = "session";
      inherit env agent;
      argv = [
        "-I"
        "${agent}/agent.pyc"
      ];
    };

  # A template, in which sessions are forked; its control socket is descriptor 0, its arguments are
  # modules to import.
  #
  # Type: { name : String, env : derivation, agent : derivation, ... } -> derivation with bin/template-run
  mkTemplateJailedEnv =
    { env, agent, ... }:
    mkJail {
      mode = "template";
      inherit env agent;
      argv = [
        "-I"
        "${agent}/template.pyc"
        "${agent}/agent.pyc"
        "${filter}"
      ];
    };
}
