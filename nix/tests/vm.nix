# nsm on NixOS, in a virtual machine: the module, the units, and the main job over the real shim.
#
# Type: { pkgs, module, sandbox } -> derivation (a NixOS VM test)
#   module  : ../modules/nixos.nix
#   sandbox : a Python environment `test-sandbox`
#
# Not run here: nsm's own tests have no nixpkgs and no KVM. What it runs in the machine,
# tests/support/vm_client.py, is run against a supervisor on the host by tests/e2e/test_mcp_clients.py.
{
  pkgs,
  module,
  sandbox,
}:
pkgs.testers.runNixOSTest {
  name = "nsm-not-run-here";

  nodes.machine = {
    imports = [ module ];

    services.nsm = {
      enable = true;
      sandboxes = [ sandbox ];
      settings.defaults.timeout_seconds = 20;
      claudebox.enable = true;
    };

    users.users.alice = {
      isNormalUser = true;
      uid = 1000;
      linger = true;
    };
    environment.systemPackages = [
      pkgs.python3
      # In Claude Code's place: runs what it is told, after the flag that it is always given.
      (pkgs.writeShellScriptBin "claude" ''exec "''${@:2}"'')
    ];
    virtualisation.memorySize = 2048;
  };

  testScript = ''
    import shlex


    def alice(command: str) -> str:
        inner = f"export XDG_RUNTIME_DIR=/run/user/1000; cd; {command}"
        return machine.succeed(f"su --login alice --command {shlex.quote(inner)}", timeout=300)


    def supervisor(key: str) -> str:
        return alice(f"systemctl --user show --property={key} --value nsm-supervisor.service").strip()


    machine.wait_for_unit("multi-user.target")
    machine.wait_for_unit("nsm-supervisor.socket", "alice")

    with subtest("the unit: nothing runs before somebody connects"):
        assert supervisor("ActiveState") == "inactive", supervisor("ActiveState")
        assert alice("stat --format=%a $XDG_RUNTIME_DIR/nsm/control.sock").strip() == "600"

    with subtest("socket activation: the first command starts it"):
        assert alice("nsm run -e bash 'echo $((6 * 7))'") == "42\n"
        machine.wait_for_unit("nsm-supervisor.service", "alice")
        assert supervisor("Type") == "notify"
        first = supervisor("MainPID")

    with subtest("environments: the presets and the system's own"):
        listed = alice("nsm env")
        for name in ("bash", "node", "python", "test-sandbox"):
            assert name in listed, listed

    for python in ("python", "test-sandbox"):
        with subtest(f"the main job over MCP: {python}"):
            print(alice(f"python3 ${../../tests/support/vm_client.py} --python {python} nsm-mcp"))
    assert supervisor("MainPID") == first

    with subtest("a box: the store, sessions, and nothing else of the host"):
        inside = "ls /usr/bin; command -v ssh || echo none; nsm run -e bash 'echo ran'; ls ~/.ssh"
        alice("mkdir --parents project .ssh && touch .ssh/id_ed25519")
        told = alice(
            f"cd project && claudebox --yes bash -c {shlex.quote(inside)} 2>&1 || true"
        ).splitlines()
        assert told[:3] == ["env", "none", "ran"], told
        assert "No such file" in told[3], told

    with subtest("restart: one that is killed is replaced, its socket stays"):
        machine.succeed(f"kill -KILL {first}")
        assert alice("nsm run -e bash 'echo again'") == "again\n"
        machine.wait_for_unit("nsm-supervisor.service", "alice")
        assert supervisor("MainPID") not in ("0", first)

    with subtest("restart: one that was shut down comes back with the next connection"):
        alice("nsm shutdown")
        machine.wait_until_succeeds(
            "su --login alice --command 'XDG_RUNTIME_DIR=/run/user/1000 systemctl --user show "
            "--property=ActiveState --value nsm-supervisor.service' | grep --quiet inactive"
        )
        alice("systemctl --user is-active nsm-supervisor.socket")
        alice("nsm-mcp --version && nsm run -e python 'print(1)'")
        machine.wait_for_unit("nsm-supervisor.service", "alice")

    with subtest("stop: no session outlives the unit"):
        alice("nsm run -e bash -s left 'sleep 1000 & echo started'")
        alice("systemctl --user stop nsm-supervisor.socket nsm-supervisor.service")
        machine.fail("pgrep --full '[s]leep 1000'")  # not this very command
  '';
}
