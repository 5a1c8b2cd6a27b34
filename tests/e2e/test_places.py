"""A supervisor without its socket and lock, and one with an error of ours."""

from __future__ import annotations

import signal
import sys
from typing import TYPE_CHECKING

import pytest

import nsm
from e2e_support import CRASHED, END_TIMEOUT_S, supervisor
from nsm.wire.errors import NotRunningError

if TYPE_CHECKING:
    from e2e_support import Supervisor


pytestmark = pytest.mark.jail


def pid_when_it_answers(it: Supervisor) -> int:
    """Wait until a supervisor serves that path, and return its process id."""
    while True:
        try:
            with it.client() as client:
                return client.status().pid
        except NotRunningError:
            continue


def test_the_socket_and_the_lock_are_taken_away(emptied: Supervisor) -> None:
    it = emptied
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
def test_sessions_survive_removed_sockets_and_a_killed_supervisor() -> None:
    """The holder's socket, too: the next supervisor finds the sessions all the same."""
    with supervisor(config="[pool]\nmax_spares = 0\n") as first:
        directory = first.directory
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
    with supervisor(within=within) as first:
        with first.client() as client:
            client.run("x = 41", env="python", session="a")
            before = client.sessions()[0].id
        first.process.send_signal(signal.SIGUSR1)
        assert first.process.wait(END_TIMEOUT_S) == CRASHED
        assert "RuntimeError: a task has an error" in first.log.read_text()
        with supervisor(first.directory) as second, second.client() as client:
            assert client.sessions()[0].id == before
            assert client.run("print(x + 1)", env="python", session="a").stdout == "42\n"
            client.kill_all()
