"""`nsm service`, with programs that stand in for systemd's; `tests/e2e/test_systemd.py` has it."""

from __future__ import annotations

import fcntl
import json
import os
import sys
from typing import TYPE_CHECKING

import pytest

from nsm.cli import systemd
from nsm.cli.systemd import MARK, SERVICE, SOCKET, units

if TYPE_CHECKING:
    from pathlib import Path

    from cli_bench import Nsm

SYSTEMCTL = """
case "$*" in
*--property=Version*) echo 252 ;;
*--property=Listen*)
    echo "ActiveState=active"
    echo "Listen=$XDG_RUNTIME_DIR/nsm/control.sock (Stream)" ;;
*--property=LoadState*) cat "$HOME/shown" ;;
*--property=MainPID*) echo MainPID=0 ;;
*--property=ActiveState*) echo ActiveState=active ;;
esac
"""


class Host:
    """A user's home, and what systemd was asked.

    Attributes:
        units: where a user's units are.
    """

    def __init__(self, directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.directory = directory
        self.bin = directory / "bin"
        self.bin.mkdir()
        self.units = directory / ".config/systemd/user"
        monkeypatch.setenv("HOME", str(directory))
        monkeypatch.setenv("PATH", f"{self.bin}:{os.defpath}")
        monkeypatch.setenv("XDG_RUNTIME_DIR", str(directory / "run"))
        for name in ("XDG_CONFIG_HOME", "XDG_STATE_HOME", "NSM_SOCKET", "NSM_SUPERVISOR"):
            monkeypatch.delenv(name, raising=False)
        monkeypatch.setattr(sys, "argv", [str(self.bin / "nsm")])
        monkeypatch.setattr(systemd, "_LINGERING", str(directory / "linger"))
        for name in ("nsm", "nsm-supervisor", "loginctl"):
            self.program(name)
        self.program("systemctl", SYSTEMCTL)

    def program(self, name: str, script: str = "") -> None:
        path = self.bin / name
        path.write_text(f'#!/bin/sh\necho "{name} $*" >>{self.directory}/log\n{script}\n')
        path.chmod(0o755)

    def asked(self) -> list[str]:
        """Return the requests to systemd since the last time that change something."""
        log = self.directory / "log"
        lines = log.read_text().splitlines() if log.exists() else []
        log.unlink(missing_ok=True)
        return [line for line in lines if " show " not in line]

    def shows(self, **properties: str) -> None:
        """Set the output of systemctl about the service."""
        text = "".join(f"{name}={value}\n" for name, value in properties.items())
        (self.directory / "shown").write_text(text)


@pytest.fixture
def host(path: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Host:
    assert path  # which this host does not name
    return Host(tmp_path, monkeypatch)


def test_uninstall_takes_back_what_install_did(host: Host, nsm: Nsm) -> None:
    said = nsm("service", "install", "--yes")
    written = {each.name: each.read_text() for each in host.units.iterdir()}
    assert written == units([f"{host.bin}/nsm-supervisor"], [f"{host.bin}/nsm"])
    assert f"ExecStart={host.bin}/nsm-supervisor\n" in written[SERVICE]
    assert host.asked() == [
        "systemctl --user daemon-reload",
        f"systemctl --user enable {SERVICE} {SOCKET}",
        f"systemctl --user start {SOCKET}",
        "loginctl enable-linger",
    ]
    assert f"write {host.units}/{SERVICE}\n" in said.out
    (host.directory / "linger").mkdir()
    (host.directory / "linger" / systemd.user_name()).touch()
    assert nsm("service", "uninstall", "--yes").code == 0
    assert list(host.units.iterdir()) == []
    assert host.asked() == [
        f"systemctl --user disable --now {SOCKET} {SERVICE}",
        "systemctl --user daemon-reload",
        "loginctl disable-linger",
    ]
    said = nsm(*["service", "uninstall", "--yes"])
    assert (said.code, "there are no units" in said.out) == (0, True)
    assert host.asked() == []


def test_units_are_changed_only_after_an_answer(host: Host, nsm: Nsm) -> None:
    for action in ("install", "uninstall"):
        host.units.mkdir(parents=True, exist_ok=True)
        if action == "uninstall":
            (host.units / SERVICE).write_text(MARK)
        said = nsm("service", action)
        assert (said.code, "`--yes` does it without" in said.err) == (1, True)
        assert host.asked() == []
    assert [each.name for each in host.units.iterdir()] == [SERVICE]


def test_units_of_somebody_else_are_kept_and_come_back(host: Host, nsm: Nsm) -> None:
    host.units.mkdir(parents=True)
    (host.units / SERVICE).write_text("[Service]\n# theirs\n")
    assert nsm("service", "install", "--yes", "--no-linger").code == 0
    assert (host.units / SERVICE).read_text().startswith(MARK)
    assert "loginctl enable-linger" not in host.asked()
    # Once more changes nothing of it.
    assert nsm("service", "install", "--yes", "--no-linger").code == 0
    assert nsm("service", "uninstall", "--yes").code == 0
    assert {each.name: each.read_text() for each in host.units.iterdir()} == {
        SERVICE: "[Service]\n# theirs\n"
    }
    (host.units / SERVICE).unlink()
    (host.units / SERVICE).symlink_to("/nix/store/x/nsm-supervisor.service")


def test_units_that_a_package_manages_are_left_alone(host: Host, nsm: Nsm) -> None:
    host.units.mkdir(parents=True)
    (host.units / SERVICE).symlink_to("/nix/store/x/nsm-supervisor.service")
    said = nsm(*["service", "install", "--yes"])
    assert (said.code, "manages the service. Change it there." in said.err) == (1, True)
    assert host.asked() == []


def test_a_supervisor_that_runs_keeps_its_place(host: Host, nsm: Nsm) -> None:
    lock = host.directory / "run/nsm/supervisor.lock"
    lock.parent.mkdir(parents=True)
    lock.write_text("4711\n")
    with lock.open() as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        said = nsm(*["service", "install", "--yes"])
    assert (said.code, "runs already that systemd did not start (pid 4711)" in said.err) == (
        1,
        True,
    )
    assert not host.units.exists()
    # One that has ended left its file, and is in nobody's way.
    assert nsm("service", "install", "--yes").code == 0


@pytest.mark.parametrize(
    ("state", "problem"),
    [
        ({}, None),
        ({"LoadState": "not-found"}, "not installed: `nsm service install`"),
        ({"ExecStart": "{ path=/elsewhere ; }"}, "the unit does not start "),
        ({"ActiveState": "failed"}, "the service has failed: `journalctl"),
    ],
)
def test_status_says_what_is_wrong(
    host: Host, nsm: Nsm, state: dict[str, str], problem: str | None
) -> None:
    right = {
        "LoadState": "loaded",
        "ActiveState": "active",
        "SubState": "running",
        "MainPID": "17",
        "NRestarts": "2",
        "NFileDescriptorStore": "6",
        "StatusText": "2 sessions",
        "ExecStart": f"{{ path={host.bin}/nsm-supervisor ; argv[]=x ; }}",
        "FragmentPath": f"{host.units}/{SERVICE}",
    }
    host.shows(**(right | state))
    code, text, _ = nsm("service", "status")
    assert code == (0 if problem is None else 1)
    facts = json.loads(nsm("service", "status", "--json").out)
    if problem is None:
        assert "active (running), pid 17, restarted 2 times: 2 sessions\n" in text
        assert facts["service"]["kept_descriptors"] == 6
        assert facts["problems"] == []
    else:
        assert f"problem: {problem}" in text
        assert len(facts["problems"]) == 1


def test_without_systemd_it_says_so(host: Host, nsm: Nsm) -> None:
    host.program("systemctl", "echo 'Failed to connect to bus: No medium found' >&2; exit 1")
    said = nsm("service", "status")
    assert (said.code, "systemd does not answer for this user" in said.err) == (1, True)
    assert "nsm works without it" in said.err
    (host.bin / "systemctl").unlink()
    os.environ["PATH"] = str(host.bin)
    said = nsm(*["service", "install"])
    assert (said.code, "systemd is not installed" in said.err) == (1, True)


@pytest.mark.parametrize(
    ("name", "script", "code", "told"),
    [
        (
            "systemctl",
            'case "$*" in *enable*) echo no way >&2; exit 1;; esac',
            1,
            f"enable {SERVICE} {SOCKET}`: no way",
        ),
        ("loginctl", "echo no way >&2; exit 1", 0, "lingering stays off (no way)"),
    ],
)
def test_a_refusal_of_systemd_is_told(
    host: Host, nsm: Nsm, name: str, script: str, code: int, told: str
) -> None:
    host.program(name, f"{script}\n{SYSTEMCTL}")
    said = nsm("service", "install", "--yes")
    assert (said.code, told in said.err) == (code, True)


@pytest.mark.parametrize(
    ("path", "written"),
    [
        ("/usr/bin/nsm-supervisor", "/usr/bin/nsm-supervisor"),
        ("/home/a b/nsm-supervisor", '"/home/a b/nsm-supervisor"'),
        ('/x/100%/$HOME/"q"/\\/n', '"/x/100%%/$$HOME/\\"q\\"/\\\\/n"'),
    ],
)
def test_paths_are_written_as_systemd_reads_them(path: str, written: str) -> None:
    assert f"\nExecStart={written}\n" in units([path], ["nsm"])[SERVICE]
