"""The package `claudebox`: what it is built from, and real boxes of it in a world like NixOS."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import standin
from box.world import AGENT, COMMAND_TIMEOUT_S, HOME, PROJECT, World, open_world
from nsmbox.host import program_links
from selection import one_in

if TYPE_CHECKING:
    from collections.abc import Callable, Generator


pytestmark = [pytest.mark.jail, pytest.mark.slow]

RESOLVER = "nameserver 192.0.2.53\n"
CERTIFICATES = "-----BEGIN CERTIFICATE-----\n"


class NixHost:
    """A world with a store, Nix' state and the /etc of NixOS, and the program to start boxes."""

    def __init__(self, world: World, place: standin.Place, program: Path) -> None:
        self.world = world
        self.store = place.store
        self.state = place.root / "var/nix"
        self.place = place
        self.program = program / "bin/claudebox"

    def command(self, script: str) -> list[str]:
        return self.world.command(str(self.program), "--yes", "run", "bash", "-c", script)

    def run(self, script: str) -> str:
        """The output of a script of Bash that succeeds in a box."""
        done = self.world.run(str(self.program), "--yes", "run", "bash", "-c", script)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def add(self, path: Path) -> str:
        """Have a file or directory in the store; its path there."""
        return standin.nix_tool(self.place, "nix-store", "--add", str(path))


@pytest.fixture(scope="module")
def host(place: standin.Place, built: Callable[[str], Path]) -> Generator[NixHost]:
    program = built("claudebox")
    with open_world() as world:
        made = NixHost(world, place, program)
        show_etc(made)
        state = world.directory / "state"
        for name in ("profiles/per-user/ada", "gcroots", "daemon-socket"):
            (state / name).mkdir(parents=True)
        for path in (state, *state.rglob("*")):
            world.give(path)
        world.stack.enter_context(daemon(place, state / "daemon-socket/socket"))
        made.state.mkdir(parents=True, exist_ok=True)
        world.show(state, str(made.state))
        yield made
    made.state.rmdir()


@contextmanager
def daemon(place: standin.Place, path: Path) -> Generator[None]:
    """Nix' own daemon, started with its socket as systemd starts it."""
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen()
        path.chmod(0o666)
        # sd_listen_fds(3): descriptor 3, told to this process.
        script = "exec 3<&0 </dev/null; LISTEN_FDS=1 LISTEN_PID=$$ exec nix-daemon --daemon"
        process = subprocess.Popen(
            ["bash", "-c", script],
            env=place.environment,
            stdin=listener.fileno(),
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
    try:
        yield
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def show_etc(host: NixHost) -> None:
    """Make /etc like NixOS: links into a directory of the store, and to files that a resolver
    writes.
    """
    world = host.world
    etc = world.directory / "etc"
    shutil.copytree(
        "/etc/ssl", etc / "ssl", symlinks=True, ignore=shutil.ignore_patterns("private")
    )
    for name in ("passwd", "group", "hosts", "nsswitch.conf"):
        shutil.copy(f"/etc/{name}", etc / name)
    numbers = f"{world.uid}:{world.gid}"
    (etc / "passwd").write_text(f"ada:x:{numbers}::{HOME}:/bin/sh\n")
    static = world.directory / "static-source"
    (static / "ssl/certs").mkdir(parents=True)
    (static / "ssl/certs/ca-bundle.crt").write_text(CERTIFICATES)
    (static / "nix").mkdir()
    (static / "nix/nix.conf").write_text("experimental-features = nix-command flakes\n")
    (etc / "static").symlink_to(host.add(static))
    (etc / "nix").mkdir()
    (etc / "nix/nix.conf").symlink_to("/etc/static/nix/nix.conf")
    (etc / "ssl/certs/ca-bundle.crt").unlink(missing_ok=True)
    (etc / "ssl/certs/ca-bundle.crt").symlink_to("/etc/static/ssl/certs/ca-bundle.crt")
    (etc / "resolv.conf").symlink_to("/run/resolver/stub-resolv.conf")
    world.write("/run/resolver/stub-resolv.conf", RESOLVER)
    world.show(world.host("/run/resolver"), "/run/resolver")
    world.show(etc, "/etc")


def test_the_store_is_all_there_is_of_the_system_and_its_programs_run(host: NixHost) -> None:
    told = host.run(
        "echo $PATH; ls -A /bin /usr /usr/bin; ls -d /lib* /sbin /run/current-system;"
        " command -v bash git , nsm python3; true"
    )
    path, *rest = told.splitlines()
    assert [each for each in path.split(":") if not each.startswith(f"{host.store}/")] == []
    assert rest[:8] == ["/bin:", "sh", "", "/usr:", "bin", "", "/usr/bin:", "env"]
    assert len(rest[8:]) == 5
    assert all(each.startswith(f"{host.store}/") for each in rest[8:])
    told = host.run(
        "git config user.name; , cowsay; nsm --version; python3 -c 'print(6 * 7)';"
        " /usr/bin/env sh -c 'echo by env'; printf '#!/bin/sh\\necho by sh\\n' >x; chmod +x x; ./x"
    )
    user, cowsay, version, *others = told.splitlines()
    assert user == "Ada Lovelace"
    assert cowsay.startswith(", of the stand-in would look for cowsay in")
    assert version.startswith("nsm ")
    assert others == ["42", "by env", "by sh"]


def test_keys_and_other_machines_are_not_on_path(host: NixHost) -> None:
    listed = host.run("IFS=:; for each in $PATH; do ls $each; done").split()
    assert {"bash", "env", "git", "node", "python3", "rg", "nix", "nsm", "nsm-mcp"} <= {*listed}
    assert [name for name in listed if program_links.holds_keys(name)] == []


def test_etc_of_nixos(host: NixHost) -> None:
    told = host.run(
        "cat /etc/resolv.conf /etc/ssl/certs/ca-bundle.crt /etc/nix/nix.conf; id -un;"
        " ls /etc/static; touch /etc/nix/x /etc/static/x 2>&1 | grep -c Read-only"
    )
    assert told.startswith(f"{RESOLVER}{CERTIFICATES}experimental-features = nix-command flakes\n")
    assert told.endswith("ada\nnix\nssl\n2\n")


def test_the_store_is_live_and_read_only(host: NixHost) -> None:
    """Paths added while the box runs appear in it; nothing can be added from inside."""
    script = f"touch {host.store}/x 2>&1 | grep -o Read-only; read -r path; cat $path"
    with subprocess.Popen(
        host.command(script),
        env=host.world.variables,
        cwd="/",
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as box:
        assert box.stdin is not None
        assert box.stdout is not None
        assert box.stdout.readline() == "Read-only\n"
        late = host.world.directory / "late"
        late.write_text("came later")
        told, _ = box.communicate(f"{host.add(late)}\n", COMMAND_TIMEOUT_S)
    assert told == "came later"


def test_the_daemon_is_reached_and_profiles_stay_as_they_are(host: NixHost) -> None:
    """A program that can change a profile decides what its owner later runs on the host."""
    connect = (
        "import socket, sys; socket.socket(socket.AF_UNIX).connect(sys.argv[1]); print('connected')"
    )
    told = host.run(
        f'cd {host.state}; python3 -c "{connect}" daemon-socket/socket;'
        " touch temproot && echo wrote;"
        " touch profiles/per-user/ada/profile gcroots/x 2>&1 | grep -c Read-only"
    )
    assert told == "connected\nwrote\n2\n"


@pytest.fixture(scope="module")
def native(host: NixHost) -> str:
    """The directory of an agent that runs on the host's own libraries."""
    folder = f"{HOME}/native"
    shell = host.world.write(f"{folder}/shell", "")
    shutil.copy(Path("/bin/sh").resolve(), shell)
    shell.chmod(0o755)
    agent = AGENT.replace("/usr/bin/env sh", f"{folder}/shell")
    host.world.write(f"{folder}/claude", agent, 0o755)
    return folder


def test_an_agent_outside_of_the_store_brings_the_host(host: NixHost, native: str) -> None:
    world = host.world
    done = world.run(
        *(str(host.program), "--yes", "run", "bash", "-c", "ls -d /usr/lib; command -v , ssh gpg"),
        variables={"PATH": f"{native}:{world.variables['PATH']}"},
    )
    library, comma, *rest = done.stdout.splitlines()
    assert library == "/usr/lib"
    assert comma.startswith(f"{host.store}/")
    assert rest == []


def test_nix_shell_works_inside(host: NixHost, native: str) -> None:
    """By the host's own `nix`, which the stand-in for nixpkgs has none of; it asks the daemon."""
    world = host.world
    flake = world.make_directory(f"{PROJECT}/nixpkgs")
    shutil.copytree(host.place.nixpkgs, flake, dirs_exist_ok=True)
    variables = {
        "PATH": f"{native}:{world.variables['PATH']}",
        "NIX_REMOTE": f"unix://{host.state}/daemon-socket/socket",
        "NIX_STORE_DIR": str(host.store),
        "NIX_CONFIG": "experimental-features = nix-command flakes\nflake-registry =\n",
    }
    names = ",".join(name for name in variables if name != "PATH")
    done = world.run(
        *(str(host.program), "--yes", "run", "bash", "-c"),
        "/usr/bin/nix shell path:$PWD/nixpkgs#tree --command bash -c 'command -v tree'",
        variables=variables | {"CLAUDEBOX_EXTRA_ENV": names},
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(f"{host.store}/")


# PATH, when it is built


def build_path(place: standin.Place, extra: str) -> subprocess.CompletedProcess[str]:
    """Build PATH of boxes with more packages, a function of nixpkgs in Nix."""
    given = f"nixpkgs = {place.nixpkgs}; jailLib = import {place.stand_in_jail}/lib;"
    call = f"import {place.source}/nix/tests/box-path.nix {{ {given} extraTools = {extra}; }}"
    return subprocess.run(
        ["nix-build", "--no-out-link", "--expr", call],
        env=place.environment,
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.usefixtures("node_in_store")
@pytest.mark.parametrize("program", one_in(4, ["ssh", "gpg2", "age-keygen", "tailscale"]))
def test_tools_that_hand_out_keys_end_the_build(place: standin.Place, program: str) -> None:
    done = build_path(place, f'pkgs: [ (pkgs.writeShellScriptBin "{program}" "") ]')
    assert done.returncode != 0
    assert f"/bin/{program} must not be on PATH in a box" in done.stderr


@pytest.mark.usefixtures("node_in_store")
def test_extra_packages_come_first_on_path(place: standin.Place) -> None:
    done = build_path(place, 'pkgs: [ (pkgs.writeShellScriptBin "own-tool" "") ]')
    assert done.returncode == 0, done.stderr
    first = Path(done.stdout.strip()).read_text().split(":")[0]
    assert first.endswith("-own-tool/bin")
