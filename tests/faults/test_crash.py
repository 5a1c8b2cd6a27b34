"""An error of ours in a task of the supervisor: the supervisor ends, and sessions outlive it."""

from __future__ import annotations

import signal
import sys
import tempfile
from pathlib import Path

import pytest

from e2e_support import CRASHED, END_TIMEOUT_S, supervisor

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
