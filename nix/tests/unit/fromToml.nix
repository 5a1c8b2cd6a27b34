# Tests of ../../lib/fromToml.nix and findPackage.nix.
{ pkgs, library }:
let
  inherit (pkgs.stdenv.hostPlatform) system;

  flakes = {
    envs = {
      packages.${system} = {
        default = pkgs.jq;
        tool = pkgs.tree;
        "dotted.name" = pkgs.bc;
      };
      legacyPackages.${system} = {
        tool = pkgs.bc;
        other = pkgs.file;
      };
      some.where.inside = pkgs.diffutils;
      text = "no package";
    };
    empty = { };
  };

  read = library.fromToml { inherit flakes; };
  good = read ./configs/good.toml;
  wrong = read ./configs/wrong.toml;

  packageOf = name: (builtins.head good.environments.${name}.packages).name;

  fails = name: msg: {
    expr = wrong.environments.${name}.drvPath;
    expectedError.msg = "nsm: environment '${name}': ${msg}";
  };

  shell = file: flake: (library.fromToml { flakes."." = flake; } file).devShell;
in
{
  testNames = {
    expr = builtins.attrNames good.environments;
    expected = [
      "alone"
      "dotted"
      "legacy"
      "py"
      "tool"
    ];
  };
  testDrvs = {
    expr = map (drv: drv.name) good.drvs;
    expected = map (name: "nsm-sandbox-${name}") [
      "alone"
      "dotted"
      "legacy"
      "py"
      "tool"
    ];
  };

  # REF alone, then packages before legacyPackages, then a path as it is.
  testDefaultPackage = {
    expr = packageOf "alone";
    expected = pkgs.jq.name;
  };
  testPackages = {
    expr = packageOf "tool";
    expected = pkgs.tree.name;
  };
  testLegacyPackages = {
    expr = packageOf "legacy";
    expected = pkgs.file.name;
  };
  testDottedPath = {
    expr = packageOf "dotted";
    expected = pkgs.diffutils.name;
  };

  testPresetMetadata = {
    expr = removeAttrs good.environments.py.metadata [ "description" ];
    expected = {
      schema = 1;
      template = 2;
      takes = [
        "policy"
        "variables"
      ];
      name = "py";
      interpreter_type = "python";
      timeout_seconds = 7;
      memory_mb = 1024;
    };
  };
  testFlakeMetadata = {
    expr = good.environments.tool.metadata;
    expected = {
      schema = 1;
      template = 2;
      takes = [
        "policy"
        "variables"
      ];
      name = "tool";
      interpreter_type = "bash";
      timeout_seconds = 11;
      memory_mb = 256;
      description = "Trees";
    };
  };
  testRegistry = {
    expr =
      let
        entry = good.metadata.environments.py;
      in
      {
        entry = removeAttrs entry [
          "artifact"
          "exec"
          "session_exec"
        ];
        exec = entry.exec == "${good.environments.py}/bin/run";
        session_exec = entry.session_exec == "${good.environments.py}/bin/session-run";
        names = builtins.attrNames good.metadata;
        session = good.metadata.session;
        json = builtins.fromJSON (builtins.unsafeDiscardStringContext good.metadataJson) == good.metadata;
      };
    expected = {
      entry = {
        backend = "jail";
        interpreter_type = "python";
        timeout_seconds = 7;
        memory_mb = 1024;
      };
      exec = true;
      session_exec = true;
      names = [
        "environments"
        "session"
      ];
      session.idle_timeout_seconds = 600;
      json = true;
    };
  };

  # What the supervisor reads in the same file changes nothing here.
  testSupervisorsKeys = {
    expr =
      let
        inherit (read ./configs/both.toml) environments metadata;
      in
      {
        names = builtins.attrNames environments;
        python = { inherit (environments.python.metadata) interpreter_type timeout_seconds; };
        hosts = environments.hosts.drvPath == (library.fromToml { } ./configs/both-without.toml).environments.hosts.drvPath;
        sections = builtins.attrNames metadata;
      };
    expected = {
      names = [
        "bash"
        "hosts"
        "python"
      ];
      python = {
        interpreter_type = "python";
        timeout_seconds = 60;
      };
      hosts = true;
      sections = [ "environments" ];
    };
  };

  testExample = {
    expr =
      let
        inherit (read ../../../config.example.toml) metadata;
      in
      {
        environments = builtins.mapAttrs (_: entry: {
          inherit (entry) interpreter_type timeout_seconds memory_mb;
        }) metadata.environments;
        inherit (metadata) session;
      };
    expected = {
      environments.python = {
        interpreter_type = "python";
        timeout_seconds = 60;
        memory_mb = 2048;
      };
      environments.scratch = {
        interpreter_type = "bash";
        timeout_seconds = 10;
        memory_mb = 256;
      };
      session = {
        idle_timeout_seconds = 86400;
        max_sessions = 100;
      };
    };
  };

  testOlderPreset = {
    expr = (read ./configs/older.toml).environments.shell.metadata.interpreter_type;
    expected = "bash";
  };

  # All others of that file are wrong.
  testLazy = {
    expr = wrong.environments.right.metadata.name;
    expected = "right";
  };

  testUnknownPreset = fails "unknown-preset" "unknown preset \"ruby\": expected one of bash, node, python[.]";
  testNoTable = fails "text" "it is \"python\": expected a table, such as \\[environments[.]text\\][.]";
  testNoTables = {
    expr = builtins.attrNames (read ./configs/no-tables.toml).environments;
    expectedError.msg = "nsm: environments is a list: expected tables, such as \\[environments[.]python\\][.]";
  };
  testPresetNoName = fails "no-name" "unknown preset a list: expected one of bash, node, python[.]";
  testBackendNoName = fails "no-backend" "unknown backend a list: expected one of jail, microvm[.]";
  testNeither = fails "neither" "it has neither preset nor flake[.] Add preset";
  testBoth = fails "both" "it has preset and flake[.] Remove one[.]";
  testUnknownKey = fails "unknown-key" "unknown flak: expected only allow_builds, backend, cpu_weight, description, devices, env, flake, .*; did you mean flake[?]";
  testNoPackage = fails "no-package" "there is no such package in flake envs[.] Tried: packages[.]${system}[.]nosuch, legacyPackages[.]${system}[.]nosuch[.]";
  testNoDefault = fails "no-default" "there is no such package in flake empty[.] Tried: packages[.]${system}[.]default[.]";
  testNoPath = fails "no-path" "there is no such package in flake envs[.] Tried: some[.]where[.]not[.]";
  testThroughPackage = fails "through-text" "there is no such package in flake envs[.] Tried: text[.]more[.]";
  testNotPackage = fails "not-package" "envs#some[.]where is a set, not a package[.]";
  testBadReference = fails "bad-reference" "flake is \"#x\": expected \"REF#attribute\"";
  testBadInterpreter = fails "bad-interpreter" "interpreter \"ruby -e\" is none that nsm has sessions for";
  testBadTimeout = fails "bad-timeout" "timeout_seconds is \"long\": expected a number";
  testMicrovm = fails "microvm" "the microvm backend is not there yet[.]";
  testBadName = {
    expr = wrong.environments."Bad Name".drvPath;
    expectedError.msg = "nsm: environment name \"Bad Name\": expected up to 64 lower-case letters";
  };

  # A registry is of all, or of none.
  testRegistryOfWrong = {
    expr = wrong.metadataJson;
    expectedError.msg = "nsm: environment ";
  };

  testNoDevShell = {
    expr = good.devShell;
    expected = null;
  };
  testProject = {
    expr = (shell ./configs/project.toml { devShells.${system}.default.marker = 1; }).marker;
    expected = 1;
  };
  testProjectOld = {
    expr = (shell ./configs/project.toml { devShell.${system}.marker = 2; }).marker;
    expected = 2;
  };
  testProjectWithout = {
    expr = shell ./configs/project.toml { };
    expectedError.msg = "nsm: environment 'project': \\[project\\] use_flake is set, but the flake in [.] has no dev shell[.] Tried: devShells[.]${system}[.]default, devShell[.]${system}[.] Add";
  };
  # The supervisor evaluates it, for the project that a client has.
  testProjectMetadata = {
    expr = (read ./configs/project.toml).metadata;
    expected = {
      environments = { };
      project = {
        use_flake = true;
        inherit_env = [ "API_KEY" ];
      };
    };
  };
  testProjectTaken = {
    expr = (read ./configs/project-taken.toml).environments.project.drvPath;
    expectedError.msg = "nsm: environment 'project': \\[project\\] use_flake makes an environment of that name[.]";
  };
}
