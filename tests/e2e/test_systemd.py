"""The units as `nsm service install` writes them, under a real `systemd --user`."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import tempfile
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from httpport import UNAUTHORIZED, answer_of, asking, listening, refused, unused
from nsm.cli.systemd import plain_units, units
from nsmd.http.service import bound
from realjail import needs_bwrap
from usermanager import SERVICE, UserManager, user_manager

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

pytestmark = [pytest.mark.jail, needs_bwrap, pytest.mark.slow]

SOCKET = "nsm-supervisor.socket"


@pytest.fixture
def manager() -> Generator[UserManager]:
    """A user's manager with nsm installed."""
    with (
        tempfile.TemporaryDirectory(prefix="nsm-") as directory,
        user_manager(Path(directory)) as it,
    ):
        done = it.nsm("service", "install", "--yes", "--no-linger")
        assert done.returncode == 0, done
        yield it


def count(manager: UserManager, session: str = "one") -> int:
    """How often this was asked of a session, by what that remembers."""
    code = "n = globals().get('n', 0) + 1; print(n)"
    done = manager.nsm("run", "--json", "-e", "python", "-s", session, code)
    assert done.returncode == 0, (done, manager.log.read_text())
    return int(json.loads(done.stdout)["stdout"])


def state(manager: UserManager) -> dict[str, Any]:
    """Return the answer of `nsm service status`."""
    facts: dict[str, Any] = json.loads(manager.nsm("service", "status", "--json").stdout)
    return facts


@pytest.mark.slow
def test_sessions_outlive_what_happens_to_the_supervisor(manager: UserManager) -> None:
    assert manager.show("ActiveState") == "inactive"
    assert count(manager) == 1  # the first client has started it
    assert count(manager, "other") == 1
    status = json.loads(manager.nsm("status", "--json").stdout)
    before = state(manager)
    assert before["service"]["pid"] == status["pid"]
    assert before["service"]["kept_descriptors"] >= 3
    assert (before["problems"], before["current"]) == ([], True)

    def restart() -> None:
        manager.systemctl("restart", SERVICE)

    def manager_again() -> None:
        manager.systemctl("daemon-reexec")

    def killed() -> None:
        manager.end_by(signal.SIGKILL)

    # A plain `kill` is no request to end sessions: systemd starts the next supervisor for them.
    def ended() -> None:
        manager.end_by(signal.SIGTERM)

    def reloaded() -> None:
        pid = manager.show("MainPID")
        manager.systemctl("reload", SERVICE)
        assert manager.show("ActiveState") == "active"
        assert manager.show("MainPID") == pid

    again = reloaded
    events: list[Callable[[], None]] = [restart, reloaded, again, killed, manager_again, ended]
    kept: list[tuple[str, int]] = []
    for number, event in enumerate(events, 2):
        event()
        assert count(manager) == number, event.__name__
        kept.append((event.__name__, int(manager.show("NFileDescriptorStore"))))
    assert count(manager, "other") == 2
    after = state(manager)
    assert after["problems"] == []
    assert after["service"]["pid"] != before["service"]["pid"]
    # What each supervisor adds would be there until systemd takes no more.
    assert len({number for _, number in kept}) == 1, kept
    assert kept[0][1] <= before["service"]["kept_descriptors"] + 2


@pytest.mark.slow
def test_a_supervisor_that_hangs_is_ended_and_its_sessions_go_on(manager: UserManager) -> None:
    manager.set("WatchdogSec=1\nTimeoutAbortSec=1")
    assert count(manager) == 1
    pid = manager.show("MainPID")
    # The next program has longer to load, and is then watched as the one before.
    manager.systemctl("reload", SERVICE)
    assert count(manager) == 2
    assert manager.show("NRestarts") == "0"
    assert manager.show("WatchdogUSec") == "1s"
    manager.stop_running()
    # It is waited for: the socket holds who comes until the next one answers.
    assert count(manager) == 3
    assert manager.show("MainPID") != pid
    assert manager.show("NRestarts") == "1"


def test_a_stop_ends_sessions_and_a_client_starts_the_supervisor_again(
    manager: UserManager,
) -> None:
    assert count(manager) == 1
    manager.systemctl("stop", SERVICE)
    assert manager.show("ActiveState") == "inactive"
    assert manager.show("Result") == "success"
    assert manager.show("NFileDescriptorStore") == "0"
    assert count(manager) == 1
    done = manager.nsm("service", "uninstall", "--yes")
    assert done.returncode == 0, done
    assert not [each for each in manager.units.iterdir() if each.is_file()]
    assert manager.show("LoadState") == "not-found"


# What a start waits for, so that there is no supervisor for as long as the test needs.
_GATE = "ExecStartPre=/bin/sh -c 'test ! -p %h/gate || { echo >%h/here; read _ <%h/gate; }'"


def test_the_port_is_nobody_elses_until_it_is_stopped(manager: UserManager) -> None:
    port = unused("127.0.0.1")
    config = manager.home / ".config/nsm/config.toml"
    config.parent.mkdir(parents=True)
    config.write_text(listening(f"127.0.0.1:{port.number}"))
    manager.set(_GATE)
    manager.systemctl("start", SERVICE)
    kept = manager.show("NFileDescriptorStore")
    here, gate = manager.home / "here", manager.home / "gate"
    os.mkfifo(here)
    os.mkfifo(gate)

    def restart() -> None:
        manager.systemctl("restart", "--no-block", SERVICE)

    for end in (
        partial(manager.end_by, signal.SIGKILL),
        partial(manager.end_by, signal.SIGTERM),
        restart,
    ):
        end()
        here.read_text()  # by now the one before has ended
        refused(port.number)
        with asking(port.number) as client:
            gate.write_text("\n")
            assert answer_of(client) == UNAUTHORIZED
        manager.systemctl("start", SERVICE)  # which waits until it is
        assert manager.show("NFileDescriptorStore") == kept
    gate.unlink()

    over = threading.Event()

    def come_and_come() -> int:
        """Connect again as soon as each connection is answered; a refused client may come again."""
        answered = 0
        while not over.is_set():
            with asking(port.number) as client, suppress(ConnectionError):
                answered += answer_of(client) == UNAUTHORIZED
        return answered

    with ThreadPoolExecutor(1) as thread:
        answered = thread.submit(come_and_come)
        try:
            manager.systemctl("reload", SERVICE)
        finally:
            over.set()
        assert answered.result()
    refused(port.number)
    with asking(port.number) as client:
        assert answer_of(client) == UNAUTHORIZED
    assert manager.show("NFileDescriptorStore") == kept
    manager.systemctl("stop", SERVICE)
    bound(port).close()
    manager.systemctl("start", SERVICE)
    refused(port.number)


def test_a_mistake_in_the_configuration_is_told_and_is_not_the_end_of_sessions(
    manager: UserManager,
) -> None:
    config = manager.home / ".config/nsm/config.toml"
    config.parent.mkdir(parents=True)
    config.write_text("[pool]\nmax_spares = many\n")
    for _ in range(2):  # the socket stays, and each client is told
        done = manager.nsm("run", "-e", "python", "1")
        assert done.returncode == 125, done
        assert "cannot start" in done.stderr, done
        assert "config.toml" in done.stderr
    assert manager.show("ActiveState", SOCKET) == "active"
    config.write_text("[pool]\nmax_spares = 1\n")
    assert count(manager) == 1
    # With sessions that wait for it, a supervisor starts with what held before.
    config.write_text("[pool]\nmax_spares = many\n")
    manager.end_by(signal.SIGKILL)
    assert count(manager) == 2
    assert "What was configured before holds on" in manager.log.read_text()


def test_units_are_what_systemd_takes(tmp_path: Path) -> None:
    if shutil.which("systemd-analyze") is None:
        pytest.skip("not here: no systemd (apt-get install systemd)")
    program = tmp_path / "nsm a%b" / "nsm-supervisor"
    program.parent.mkdir()
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    installed = units([str(program)], [str(program), "--x"])
    for name, text in installed.items():
        (tmp_path / name).write_text(text)
    done = subprocess.run(
        ["systemd-analyze", "--user", "--man=no", "verify", *map(str, tmp_path.glob("nsm-*.*"))],
        capture_output=True,
        text=True,
        check=False,
        env={"XDG_RUNTIME_DIR": str(tmp_path), "HOME": str(tmp_path), "PATH": "/usr/bin:/bin"},
    )
    # Unknown keys are told, and do not fail.
    assert (done.returncode, done.stderr) == (0, "")


def test_the_units_beside_the_sources_are_these() -> None:
    folder = Path(__file__).parents[2] / "systemd"
    assert {each.name: each.read_text() for each in folder.iterdir()} == plain_units()
