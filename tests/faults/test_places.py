"""Several supervisors at once, one without its socket and lock, and one with an error of ours."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import nsm
from e2e_support import CRASHED, END_TIMEOUT_S, supervisor
from nsm.wire.errors import NotRunningError
from processes import ending

if TYPE_CHECKING:
    from collections.abc import Generator

    from e2e_support import Supervisor


pytestmark = pytest.mark.jail


@pytest.fixture(scope="module")
def it() -> Generator[Supervisor]:
    config = "[pool]\nmax_spares = 0\n"
    with supervisor(config=config) as it:
        yield it


def pid_when_it_answers(it: Supervisor) -> int:
    """Wait until a supervisor serves that path, and return its process id."""
    while True:
        try:
            with it.client() as client:
                return client.status().pid
        except NotRunningError:
            continue


def others(it: Supervisor, count: int) -> list[str]:
    """Start further supervisors at once; return their messages once each has ended."""
    command = [sys.executable, "-P", "-m", "nsmd"]
    started = [
        subprocess.Popen(
            command, env=it.variables, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, cwd="/"
        )
        for _ in range(count)
    ]
    said: list[str] = []
    for process in started:
        with ending(process):
            said.append(process.communicate()[1].decode())
            assert process.returncode == 1
    return said


def test_the_socket_and_the_lock_are_taken_away(it: Supervisor) -> None:
    with it.client() as client:
        client.run("x = 41", env="python", session="a")
        for name in ("supervisor.lock", "control.sock"):
            (it.directory / name).unlink()
        assert pid_when_it_answers(it) == it.pid
        assert client.run("x += 1", env="python", session="a").exit_code == 0
    with nsm.Client(socket_path=it.socket, scope="test") as client:
        assert client.server.pid == it.pid
        assert client.run("print(x)", env="python", session="a").stdout == "42\n"


@pytest.mark.slow
def test_more_supervisors_end_and_name_the_one_that_runs(it: Supervisor) -> None:
    said = others(it, 3)
    assert all(f"running already (pid {it.pid})" in each for each in said), said
    with it.client() as client:
        assert client.status().pid == it.pid
    assert os.path.exists(it.socket)


@pytest.mark.slow
def test_sessions_survive_removed_sockets_and_a_killed_supervisor() -> None:
    """The holder's socket, too: the next supervisor finds the sessions all the same."""
    config = "[pool]\nmax_spares = 0\n"
    with tempfile.TemporaryDirectory(prefix="nsm-") as name:
        directory = Path(name)
        with supervisor(directory, config=config) as first:
            with first.client() as client:
                client.run("x = 41", env="python", session="a")
                pid = client.sessions()[0].pid
                for path in (*directory.glob("*.sock"), directory / "supervisor.lock"):
                    path.unlink()
                while not (directory / "keeper.sock").exists():
                    client.ping()
                while (survival := client.status().survival).problem:
                    pass  # the next holder has not been told all yet
                assert survival.kind == "keeper"
            assert pid_when_it_answers(first) == first.pid
            first.kill()
            with supervisor(directory, keep=True) as second, second.client() as client:
                assert client.run("print(x + 1)", env="python", session="a").stdout == "42\n"
                assert client.sessions()[0].pid == pid


# An error of ours in a task of the supervisor: the supervisor ends, and sessions outlive it.


pytestmark = pytest.mark.jail

FAILS_ON_SIGNAL = """
import signal, sys
import trio
from nsmd.app import main
from nsmd.app.instance import SocketGuard

async def watch(self):
    with trio.open_signal_receiver(signal.SIGUSR1) as signals:
        async for _ in signals:
            raise RuntimeError("a task has an error")

SocketGuard.watch = watch
sys.argv[1:] = sys.argv[sys.argv.index("nsmd") + 1 :]
sys.exit(main.main())
"""
"""The supervisor, with a task that fails when it is told to."""


def test_sessions_outlive_a_task_that_fails() -> None:
    within = (sys.executable, "-P", "-c", FAILS_ON_SIGNAL)
    with (
        tempfile.TemporaryDirectory(prefix="nsm-") as name,
        supervisor(Path(name), within=within) as first,
    ):
        with first.client() as client:
            client.run("x = 41", env="python", session="a")
            before = client.sessions()[0].id
        first.process.send_signal(signal.SIGUSR1)
        assert first.process.wait(END_TIMEOUT_S) == CRASHED
        assert "RuntimeError: a task has an error" in first.log.read_text()
        with supervisor(Path(name)) as second, second.client() as client:
            assert client.sessions()[0].id == before
            assert client.run("print(x + 1)", env="python", session="a").stdout == "42\n"
            client.kill_all()
