"""`--check`: each row by itself, and the whole in a real world."""

from __future__ import annotations

import os
import socket
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from box.world import HOME, PROJECT
from nsmbox import profiles
from nsmbox.host import nix_host
from nsmbox.host.facts import BoxRequest
from nsmbox.model.plan import BoxError, Network
from nsmbox.start import check

if TYPE_CHECKING:
    from pathlib import Path

    from box.world import World
    from nsm.checks import HostCheck

CLAUDE = BoxRequest(profile=profiles.load("claude"))


def row(text: str, name: str) -> str:
    """The status and detail of one row of the printed table."""
    for line in text.splitlines():
        status, _, rest = line.partition("  ")
        if rest.strip().startswith(f"{name}  "):
            return f"{status.strip()} {rest.strip()[len(name) :].strip()}"
    raise AssertionError(f"no row {name!r} in\n{text}")


def test_root_is_told_how() -> None:
    found = check.check_user(0, CLAUDE, "claudebox")
    assert found.status == "fail"
    assert "claude refuses" in found.detail
    assert "runuser -u USER -- claudebox ..." in found.fix
    assert check.check_user(1000, CLAUDE, "claudebox").status == "ok"


@pytest.mark.parametrize(
    ("script", "words"),
    [(None, "bwrap is not on PATH"), ("exit 3", "exit code 3"), ("echo bubblewrap 0.4.0", "0.4.0")],
)
def test_a_bwrap_that_cannot_be_used(tmp_path: Path, script: str | None, words: str) -> None:
    if script:
        (tmp_path / "bwrap").write_text(f"#!/bin/sh\n{script}\n")
        (tmp_path / "bwrap").chmod(0o755)
    _, found = check.check_bwrap(str(tmp_path), "/nonexistent")
    assert found.status == "fail"
    assert words in found.detail
    assert found.fix


def test_namespaces_that_are_refused_are_explained(tmp_path: Path) -> None:
    refusing = tmp_path / "bwrap"
    refusing.write_text(
        "#!/bin/sh\necho 'bwrap: No permissions to creating new namespace' >&2\nexit 1\n"
    )
    refusing.chmod(0o755)
    found = check.check_namespaces(str(refusing), 1000)
    assert found.status == "fail"
    assert "No permissions to creating new namespace" in found.detail
    assert found.fix
    assert check.check_namespaces(None, 1000).status == "warn"
    assert check.check_namespaces(str(refusing), 0).status == "warn"


def test_sandbox_exec_is_tried_on_macos(tmp_path: Path) -> None:
    program = tmp_path / "sandbox-exec"
    found = check.check_seatbelt(str(program))
    assert (found.status, "No such file" in found.detail) == ("fail", True)
    for code, status in ((0, "ok"), (71, "fail")):
        program.write_text(f"#!/bin/sh\n[ $# -eq 3 ] && exit {code}\n")
        program.chmod(0o755)
        assert check.check_seatbelt(str(program)).status == status


def test_on_macos_nothing_of_linux_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("platform.system", lambda: "Darwin")
    names = {one.name for one in check.examine(CLAUDE, dict(os.environ), program="claudebox")}
    assert "sandbox-exec" in names
    assert not names & {"bwrap", "user namespaces", "system calls", "abstract sockets", "box"}


def test_the_nix_daemon(tmp_path: Path) -> None:
    store = tmp_path / "store"
    given = {nix_host.STORE_VARIABLE: str(store)}
    assert check.check_nix(given).status == "ok"
    store.mkdir()
    found = check.check_nix(given)
    assert (found.status, "No such file" in found.detail) == ("warn", True)
    assert "nix-daemon.socket" in found.fix
    place = tmp_path / "var/nix/daemon-socket"
    place.mkdir(parents=True)
    with socket.socket(socket.AF_UNIX) as daemon:
        daemon.bind(str(place / "socket"))
        assert check.check_nix(given).status == "warn"  # nobody listens
        daemon.listen()
        assert check.check_nix(given).status == "ok"
        found = check.check_nix(given, "@wheel")
    assert (found.status, "become root" in found.detail) == ("warn", True)
    assert "@wheel out of trusted-users" in found.fix


@pytest.mark.parametrize(
    ("content", "status", "words"),
    [
        ("search x\nnameserver 192.0.2.1\nnameserver\nnameserver ::1\n", "ok", "192.0.2.1, ::1"),
        ("# nothing\n", "ok", "this machine's own"),
        (None, "warn", "No such file"),
    ],
)
def test_names_of_hosts(tmp_path: Path, content: str | None, status: str, words: str) -> None:
    path = tmp_path / "resolv.conf"
    if content is not None:
        path.write_text(content)
    found = check.check_names(CLAUDE, str(path))
    assert (found.status, words in found.detail) == (status, True)


def test_certificates(tmp_path: Path) -> None:
    there = tmp_path / "ca.crt"
    there.write_text("x")
    missing = str(tmp_path / "nothing")

    def of(variables: dict[str, str], *usual: str) -> HostCheck:
        return check.check_certificates(CLAUDE, variables, usual)

    assert of({}, missing, str(there)).status == "ok"
    assert of({"SSL_CERT_FILE": str(there)}, missing).status == "ok"
    wrong = of({"SSL_CERT_FILE": missing}, str(there))
    assert (wrong.status, "SSL_CERT_FILE" in wrong.fix) == ("warn", True)
    assert of({}, missing).status == "warn"
    assert of({"SSL_CERT_FILE": str(tmp_path)}, str(there)).status == "warn"


def test_the_supervisors_socket(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = str(tmp_path / "control.sock")
    monkeypatch.setenv("NSM_SOCKET", path)
    assert "is started with the box" in check.check_socket({}, needed=False).detail
    off = {"NSM_AUTOSTART": "0"}
    assert check.check_socket(off, needed=False).status == "warn"
    assert check.check_socket(off, needed=True).status == "fail"
    with socket.socket(socket.AF_UNIX) as supervisor:
        supervisor.bind(path)
        supervisor.listen()
        assert "listens on" in check.check_socket(off, needed=True).detail
    monkeypatch.setenv("NSM_SOCKET", "relative")
    assert check.check_socket({}, needed=True).status == "fail"


def with_network(mode: str) -> BoxRequest:
    return replace(CLAUDE, network=Network(mode=mode))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("mode", "version", "status"),
    [("host", 6, "ok"), ("host", 5, "warn"), ("host", 0, "warn"), ("none", 0, "ok")],
)
def test_abstract_sockets(mode: str, version: int, status: str) -> None:
    assert check.check_abstract_sockets(with_network(mode), version).status == status


def test_variables_that_are_not_set() -> None:
    asked = replace(CLAUDE, extra=("A", "B"))
    found = check.check_variables(asked, {"A": "1"})
    assert found is not None
    assert (found.status, found.detail) == (
        "warn",
        "not set, so that the box does not have them: B",
    )
    found = check.check_variables(asked, {"A": "", "B": ""})
    assert found is not None
    assert found.status == "ok"
    assert check.check_variables(CLAUDE, {}) is None


def test_nothing_a_terminal_acts_on_is_printed(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    evil = BoxError("/home/x/\x1b[2J\u202e: broken", hint="\x07")
    monkeypatch.setenv("PATH", "/nonexistent")
    assert check.check(CLAUDE, {"PATH": "/nonexistent"}, program="claudebox", mistake=evil) == 1
    printed = capsys.readouterr().out
    assert all(line.isprintable() for line in printed.splitlines())
    assert r"/home/x/\x1b[2J\u202e: broken" in row(printed, "configuration")


def test_all_is_well(world: World) -> None:
    with world.supervisor():
        done = world.run("claudebox", "--check")
    assert done.returncode == 0, done.stdout + done.stderr
    for name, words in {
        "user": "not root",
        "bwrap": "/usr/bin/bwrap",
        "user namespaces": "allowed",
        "directory": PROJECT,
        "claude": f"{HOME}/.npm-global/lib/node_modules/@anthropic-ai/claude-code/cli.js",
        "git identity": "Ada Lovelace <ada@example.org>",
        "socket": "a supervisor listens on",
        "box": "claude: starts",
    }.items():
        found = row(done.stdout, name)
        assert found.startswith("ok"), done.stdout
        assert words in found
    for name in ("nix daemon", "DNS", "certificates", "abstract sockets"):
        row(done.stdout, name)
    assert not world.host(f"{HOME}/.claudebox").exists()
    assert not world.host(f"{PROJECT}/.git").exists()


def test_all_that_is_missing_is_told_with_what_to_do(world: World) -> None:
    world.host(f"{HOME}/.npm-global/bin/claude").unlink()
    world.write(f"{HOME}/.config/nsm/config.toml", "[box]\nnet = 'all'\n")
    done = world.run("claudebox", "--check", directory=HOME)
    assert done.returncode == 1
    assert row(done.stdout, "configuration").startswith("fail")
    assert row(done.stdout, "directory").startswith("fail")
    assert row(done.stdout, "socket").startswith("warn")
    done = world.run("claudebox", "--check")
    assert done.returncode == 1
    assert row(done.stdout, "claude").startswith("fail claude was not found")
    assert "npm install -g @anthropic-ai/claude-code" in done.stdout
    assert row(done.stdout, "box") == "fail not tried, for what is missing above"


@pytest.mark.slow
def test_a_shell_box_needs_no_command_to_be_checked(world: World) -> None:
    done = world.run("nsm", "box", "--check", "--net", "off")
    assert done.returncode == 0, done.stdout
    assert row(done.stdout, "box") == "ok shell: starts"
    done = world.run("nsm", "box", "--check", "--", "no-such-command")
    assert done.returncode == 1
    assert row(done.stdout, "command").startswith("fail no-such-command was not found")
    done = world.run("nsm", "box", "--check", "--", "./README.md")
    assert row(done.stdout, "command").startswith("fail ./README.md cannot be executed")
    assert os.listdir(world.host(PROJECT)) == ["README.md"]


@pytest.mark.slow
def test_limits_are_told_with_what_enforces_them(world: World) -> None:
    without = row(world.run("claudebox", "--check").stdout, "limits")
    assert without.startswith("warn memory "), without
    assert "4096 processes" in without
    assert "memory for each process alone" in without
    with world.supervisor():
        told = row(world.run("claudebox", "--check").stdout, "limits")
    assert told.startswith("ok memory "), told
    assert "; memory by " in told
