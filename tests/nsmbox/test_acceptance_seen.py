"""Boxes from inside: what a program sees."""

from __future__ import annotations

import json
import os
import socket
import ssl
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from box.looking import BUNDLE, PASSED, look
from box.world import AWAY, HOME, PROJECT, SECRET, SECRETS, SOCKETS, World, have_git, open_world
from processes import ending
from realjail import needs_bwrap
from rungates import COVERAGE_VARIABLE

if TYPE_CHECKING:
    from collections.abc import Generator

pytestmark = [pytest.mark.jail, needs_bwrap]

OF_THE_BOX = {
    "PATH",
    "TMPDIR",
    "XDG_RUNTIME_DIR",
    "CLAUDE_CONFIG_DIR",
    "DISABLE_AUTOUPDATER",
    "NSM_SOCKET",
    "NSM_AUTOSTART",
}
OF_A_SHELL = {"PWD", "OLDPWD", "SHLVL", "_"}

DATABASES = ("passwd", "group", "hosts", "nsswitch.conf", "resolv.conf")

FORBIDDEN = (
    *("gpg", "gpg-agent", "gpg2", "ssh", "ssh-add", "scp", "sftp", "age", "age-keygen", "rage"),
    *("tailscale", "sudo", "su", "pkexec", "docker", "podman"),
)

PROGRAMS_OF_THE_HOST = [
    str(Path(directory) / name)
    for directory in ("/usr/bin", "/bin", "/usr/local/bin", "/usr/sbin")
    for name in FORBIDDEN
    if (Path(directory) / name).exists()
]

USUAL = ("sh", "env", "git", "ls", "nsm", "nsm-mcp", "claude", "gh-of-ada")


@dataclass(frozen=True, slots=True)
class Seen:
    """Report of a program that ran in a box."""

    world: World
    told: dict[str, Any]

    def kind(self, path: str) -> str:
        kind: str = self.told["kinds"][path]
        return kind


@pytest.fixture(scope="module")
def seen(box_tools: Path) -> Generator[Seen]:
    """A claude's box in a project below HOME, with everything on the host that it must not see."""
    with open_world(box_tools) as world, socket.create_server(("127.0.0.1", 0)) as server:
        have_git(world)
        world.write(f"{HOME}/.local/bin/age", "#!/bin/sh\necho age\n", 0o755)
        world.write(f"{HOME}/.local/bin/gh-of-ada", "#!/bin/sh\necho gh\n", 0o755)
        world.write(f"{HOME}/.claudebox/settings.json", "{}\n")
        yield Seen(
            world,
            look(
                world,
                *("claudebox", "--yes", "run"),
                texts=[
                    *(f"/etc/{name}" for name in DATABASES),
                    *(
                        f"{PROJECT}/README.md",
                        f"{HOME}/.gitconfig",
                        f"{HOME}/.claude/settings.json",
                    ),
                    *("/proc/1/cmdline", "/proc/1/environ"),
                ],
                kinds=[
                    *(f"{HOME}/{path}" for path in SECRETS),
                    *(path.replace("UID", str(world.uid)) for path in SOCKETS.values()),
                    *("/usr/bin/env", "/etc/ssl", "/etc/shadow", "/etc/ssh", "/sys", "/nix/store"),
                    *(HOME, f"{HOME}/.claudebox", f"{HOME}/other", "/home/shared", "/root", "/var"),
                ],
                writes=[
                    *("/usr", "/etc", "/usr/bin", "/tmp", "/dev/shm", "/run/nsm/bin", "/proc"),
                    *(HOME, PROJECT, f"{HOME}/.claude"),
                ],
                programs=[*FORBIDDEN, *USUAL],
                executed=PROGRAMS_OF_THE_HOST,
                ports=[server.getsockname()[1]],
            ),
        )


def test_variables_are_those_of_the_list(seen: Seen) -> None:
    variables = dict(seen.told["variables"])
    for name, value in PASSED.items():
        assert variables.pop(name) == value, name
    assert (variables["TMPDIR"], variables["XDG_RUNTIME_DIR"]) == ("/tmp", "/tmp")
    measured = {COVERAGE_VARIABLE} & os.environ.keys()  # coverage adds it to what is executed
    assert variables.keys() - OF_A_SHELL - measured == OF_THE_BOX


def test_the_root_is_the_boxs_own_and_the_system_read_only(seen: Seen) -> None:
    told = seen.told
    assert told["mounts"]["/"][0] == "tmpfs"
    assert {"bin", "dev", "etc", "home", "proc", "run", "tmp", "usr"} <= set(told["root"])
    assert {"boot", "media", "mnt", "opt", "srv", "sys"} & set(told["root"]) == set()
    assert seen.kind("/usr/bin/env") in ("file", "l")
    for path in ("/usr", "/etc", "/usr/bin", "/proc"):
        assert told["writes"][path] in ("EROFS", "EACCES", "ENOENT"), path
    assert told["ids"] == [seen.world.uid, seen.world.gid]
    assert told["host"] == "nsm-box"


def test_tmp_devices_and_processes_are_private(seen: Seen) -> None:
    told = seen.told
    assert told["tmp"] == []
    assert told["writes"]["/tmp"] == told["writes"]["/dev/shm"] == "written"
    assert not Path("/tmp/written-in-the-box").exists()
    assert {"null", "zero", "full", "random", "urandom", "tty", "pts", "shm"} <= set(
        told["devices"]
    )
    assert not {"kvm", "fuse", "mem", "kmsg", "vda", "sda", "net", "dri"} & set(told["devices"])
    assert told["mounts"]["/proc"][0] == "proc"
    assert len(told["processes"]) <= 4, told["processes"]


def test_lookups_of_names_work_as_on_the_host(seen: Seen) -> None:
    told = seen.told
    for name in DATABASES:
        there = seen.world.run("cat", f"/etc/{name}").stdout
        there += "\n127.0.0.1 nsm-box\n" if name == "hosts" else ""
        assert told["texts"][f"/etc/{name}"] == there, name
    assert set(told["localhost"]) & {"127.0.0.1", "::1"}
    assert told["its own name"] == ["127.0.0.1"]
    assert told["ports"] == ["connected"], "the host's loopback"
    assert told["certificates"] == len(ssl.create_default_context(cafile=BUNDLE).get_ca_certs())
    assert seen.kind("/etc/ssl") == "directory"
    assert seen.kind("/etc/shadow") in ("ENOENT", "empty file")


def test_home_is_empty_but_for_the_agents_own(seen: Seen) -> None:
    told = seen.told
    assert told["mounts"][HOME][0] == "tmpfs"
    assert told["texts"][f"{HOME}/.claude/settings.json"] == "{}\n"
    for path in (".claudebox", "other"):
        assert seen.kind(f"{HOME}/{path}") == "ENOENT"
    assert seen.kind("/home/shared") == "ENOENT"
    # What is written to HOME is gone with the box, to ~/.claude it is kept in ~/.claudebox.
    assert told["writes"][HOME] == told["writes"][f"{HOME}/.claude"] == "written"
    assert not seen.world.host(f"{HOME}/written-in-the-box").exists()
    assert seen.world.host(f"{HOME}/.claudebox/written-in-the-box").read_text() == "written\n"
    assert not seen.world.host(f"{HOME}/.claude/written-in-the-box").exists()


def test_the_working_directory_is_the_hosts(seen: Seen) -> None:
    told = seen.told
    assert told["directory"] == told["variables"].get("PWD", PROJECT) == PROJECT
    assert told["texts"][f"{PROJECT}/README.md"] == "a project\n"
    assert seen.world.host(f"{PROJECT}/written-in-the-box").read_text() == "written\n"
    made = seen.world.host(f"{PROJECT}/written-in-the-box").stat()
    assert (made.st_uid, made.st_gid) == (seen.world.uid, seen.world.gid)


def test_no_secret_is_there_by_its_name_or_in_a_command_line(seen: Seen) -> None:
    for path in SECRETS:
        if path != ".claude/.credentials.json" and not path.startswith(".claude"):
            assert seen.kind(f"{HOME}/{path}") == "ENOENT", path
    for path in SOCKETS.values():
        assert seen.kind(path.replace("UID", str(seen.world.uid))) == "ENOENT", path
    assert SECRET not in json.dumps(seen.told)
    # No other user reads a key in a command line.
    assert seen.told["texts"]["/proc/1/cmdline"].strip("\0") == "nsm-box"
    assert seen.told["texts"]["/proc/1/environ"] is None, "nobody can read it"


def test_forbidden_programs_are_not_on_path_and_do_not_start(seen: Seen) -> None:
    told = seen.told
    assert told["variables"]["PATH"] == "/run/nsm/bin:/run/nsm/tools"
    # A shell's idea of what is on PATH is another one: files that it may not execute count.
    found = seen.world.run(
        *("claudebox", "--yes", "run", "bash", "-c", 'for n in "$@"; do command -v "$n"; done'),
        *("bash", *FORBIDDEN, "sh"),
    )
    assert found.stdout == "/run/nsm/tools/sh\n"
    assert {name: told["programs"][name] for name in FORBIDDEN} == dict.fromkeys(FORBIDDEN)
    assert {name for name in USUAL if told["programs"][name] is None} == {"gh-of-ada"}
    assert PROGRAMS_OF_THE_HOST
    assert set(told["executed"].values()) <= {"EACCES", "ENOENT"}, told["executed"]


def test_a_working_directory_outside_of_home_is_all_there_is_of_it(world: World) -> None:
    world.write("/home/shared/secret", SECRET)
    world.write(f"{AWAY}/file", "text\n")
    told = look(
        world,
        *("nsm", "box", "--yes", "--", "env"),
        directory=AWAY,
        texts=["file", "../secret"],
        kinds=[HOME, f"{HOME}/.claude", PROJECT],
        writes=["."],
    )
    assert told["texts"] == {"file": "text\n", "../secret": None}
    assert told["kinds"][f"{HOME}/.claude"] == told["kinds"][PROJECT] == "ENOENT"
    assert world.host(f"{AWAY}/written-in-the-box").exists()


STORE = Path("/nix/store")


def test_safe_shows_of_home_what_is_listed(world: World) -> None:
    world.write(f"{HOME}/.config/tool/settings", "of the tool\n")
    world.write(f"{HOME}/notes", "notes\n")
    world.write(f"{HOME}/.config/nsm/config.toml", '[box]\nshow = ["~/.config/tool", "~/notes"]\n')
    listed = [f"{HOME}/.config/tool/settings", f"{HOME}/notes"]
    with socket.create_server(("127.0.0.1", 0)) as server:
        told = look(
            world,
            *("nsm", "box", "--yes", "--profile", "safe", "--", "env"),
            texts=listed,
            kinds=[f"{HOME}/{path}" for path in SECRETS],
            writes=[f"{HOME}/.config/tool", PROJECT],
            ports=[server.getsockname()[1]],
        )
    assert told["texts"] == dict(zip(listed, ["of the tool\n", "notes\n"], strict=True))
    assert set(told["kinds"].values()) == {"ENOENT"}
    assert told["writes"] == {f"{HOME}/.config/tool": "EROFS", PROJECT: "written"}
    assert told["ports"] == ["connected"]
    world.write(f"{HOME}/.config/nsm/config.toml", '[box]\nshow = ["~/.ssh"]\n')
    done = world.run(
        "nsm", "box", "--yes", "--profile", "safe", "--", "cat", f"{HOME}/.ssh/id_ed25519"
    )
    assert SECRET not in done.stdout


@pytest.mark.skipif(not STORE.is_dir(), reason="not here: there is no /nix/store")
def test_the_store_is_shown_read_only_and_live(world: World) -> None:
    store = world.directory / "store"
    (store / "one").mkdir(parents=True)
    world.show(store, "/nix/store")
    shown = (
        "touch /nix/store/x 2>/dev/null || echo read-only; ls /nix/store; read line; ls /nix/store"
    )
    with ending(world.popen("nsm", "box", "--yes", "--", "sh", "-c", shown, stderr=None)) as box:
        assert box.stdout is not None
        assert [box.stdout.readline(), box.stdout.readline()] == [b"read-only\n", b"one\n"]
        (store / "two").mkdir()
        assert box.communicate(b"\n")[0] == b"one\ntwo\n"
