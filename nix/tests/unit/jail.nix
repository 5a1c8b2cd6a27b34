# Tests of ../../backends/jail.nix with a jail that only records what it is asked for.
{ pkgs }:
let
  # Each combinator is its name and arguments.
  combinators =
    builtins.mapAttrs
      (
        name: arguments:
        if arguments == 0 then
          name
        else if arguments == 1 then
          first: "${name} ${builtins.toJSON first}"
        else
          first: second: "${name} ${builtins.toJSON first} ${builtins.toJSON second}"
      )
      {
        base = 0;
        bind-nix-store-runtime-closure = 0;
        no-die-with-parent = 0;
        add-runtime = 1;
        add-seccomp = 1;
        unsafe-add-raw-args = 1;
        bind-pkg = 2;
        set-env = 2;
      }
    // {
      add-pkg-deps = packages: "add-pkg-deps ${toString (map (package: package.name) packages)}";
      noescape = text: { unescaped = text; };
      set-argv = argv: "set-argv ${builtins.toJSON argv}";
    };

  jail = name: entry: permissions: {
    inherit name entry;
    asked = builtins.filter builtins.isString (permissions combinators);
  };

  backend =
    packages:
    import ../../backends/jail.nix {
      pkgs = packages;
      inherit jail;
    };

  env = pkgs.runCommand "env" { } "";
  arguments = {
    name = "x";
    inherit env;
    agent = pkgs.runCommand "agent" { } "";
    interpreter = "bash -s";
    stdinMode = "pipe";
  };

  run = (backend pkgs).mkJailedEnv arguments;
  session = (backend pkgs).mkSessionJailedEnv arguments;
  template = (backend pkgs).mkTemplateJailedEnv arguments;

  contains = text: builtins.any (asked: builtins.match ".*${text}.*" asked != null);
  inEach = text: map (jailed: contains text jailed.asked) [
    run
    session
    template
  ];
  bash = text: builtins.replaceStrings [ "\n" ] [ " " ] text;

  withBwrap = version: (backend (pkgs // { bubblewrap = pkgs.bubblewrap // { inherit version; }; })).mkJailedEnv arguments;
  runtime =
    version:
    builtins.head (
      builtins.filter (text: builtins.match "add-runtime .*" (bash text) != null) (withBwrap version).asked
    );
  bindsDescriptors = version: builtins.match ".*NSM_BINDS_DESCRIPTORS=yes.*" (runtime version) != null;

  permissions = import ../../backends/permissions.nix { inherit pkgs; } combinators;
in
{
  testNames = {
    expr = map (jailed: jailed.name) [
      run
      session
      template
    ];
    expected = [
      "run"
      "session-run"
      "template-run"
    ];
  };
  # Only a template makes namespaces; its forks take these steps themselves.
  testDisableUserns = {
    expr = inEach "--disable-userns";
    expected = [
      true
      true
      false
    ];
  };
  testFilter = {
    expr = inEach "add-seccomp";
    expected = [
      true
      true
      false
    ];
  };
  testSizes = {
    expr = inEach "--size .*NSM_WORKSPACE_BYTES.* --tmpfs /workspace";
    expected = [
      true
      true
      false
    ];
  };
  # bwrap's own PID 1 has no filter.
  testAsPid1 = {
    expr = inEach "--as-pid-1";
    expected = [
      true
      true
      false
    ];
  };
  testDiesWithParent = {
    expr = inEach "no-die-with-parent";
    expected = [
      false
      true
      true
    ];
  };
  testDirectory = {
    expr = inEach "--chdir /workspace";
    expected = [
      true
      true
      false
    ];
  };
  # The environment's programs come before what it may lack: the last is in front.
  testPath = {
    expr = builtins.head run.asked;
    expected = "add-pkg-deps ${pkgs.bash.name} env";
  };
  testArguments = {
    expr = map (jailed: contains ''set-argv .*"unescaped":"."[$]@."".*'' jailed.asked) [
      run
      session
      template
    ];
    expected = [
      false
      true
      true
    ];
  };

  testDescriptorsOld = {
    expr = bindsDescriptors "0.8.0";
    expected = false;
  };
  testDescriptors = {
    expr = map bindsDescriptors [
      "0.10.0"
      "0.11.0"
      "1.0"
    ];
    expected = [
      true
      true
      true
    ];
  };

  testUnprivileged = {
    expr = builtins.elem "unsafe-add-raw-args \"--uid 1000 --gid 1000 --cap-drop ALL --hostname nsm\"" permissions;
    expected = true;
  };
  # It would write below the caller's HOME.
  testNoFakePasswd = {
    expr = builtins.elem "fake-passwd" permissions;
    expected = false;
  };

  testStdinMode = {
    expr = ((backend pkgs).mkJailedEnv (arguments // { stdinMode = "file"; })).entry;
    expectedError.msg = "nsm: environment 'x': stdinMode is 'file': expected arg or pipe[.]";
  };
  testEmptyInterpreter = {
    expr = ((backend pkgs).mkJailedEnv (arguments // { interpreter = " "; })).entry;
    expectedError.msg = "nsm: environment 'x': its interpreter is empty[.]";
  };
}
