"""Jobs while supervisors, agents and clients are killed at any moment."""

from __future__ import annotations

import faulthandler
import os
import random
import signal
import subprocess
import tempfile
import threading
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import nsm
from e2e_support import program, supervisor, wait_gone
from processes import ending
from soak.load import Load, scaled

if TYPE_CHECKING:
    from e2e_support import Supervisor

pytestmark = [pytest.mark.jail, pytest.mark.slow]

SEED = int(os.environ.get("NSM_SOAK_SEED", "20"))
FOLLOWERS = 3
END_S = 60

COUNTS = "i=0; while [ ! -e stop ]; do i=$((i+1)); echo $i; sleep .002; done; exit 6"


def client_of(it: Supervisor) -> nsm.Client:
    """Connect to whatever supervisor there is."""
    return nsm.Client(socket_path=it.socket, scope="victims", autostart=False, reconnect=False)


def agent_with_job(client: nsm.Client, number: int) -> int:
    """Start a job in a session of its own, and return the process id of the session's agent."""
    name = f"victim-{number}"
    client.exec(name, ["sh", "-c", COUNTS], env="bash")
    return next(row.pid for row in client.sessions() if row.name == name)


@pytest.mark.parametrize("kills", [scaled(150)])
def test_nothing_is_lost_doubled_or_started_twice(
    kills: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    faulthandler.cancel_dump_traceback_later()  # pytest's; this takes its time
    monkeypatch.setenv("NSM_AUTOSTART", "0")  # the command line starts the next supervisor
    chance = random.Random(SEED)
    with tempfile.TemporaryDirectory(prefix="nsm-") as path, ExitStack() as stack:
        it = stack.enter_context(supervisor(Path(path), keep=True))
        stack.enter_context(ending(it.process))
        stack.callback(it.run, "nsm", "shutdown")

        def begin(*words: str, output: int = subprocess.DEVNULL) -> subprocess.Popen[bytes]:
            process = subprocess.Popen(
                [program("nsm"), *words],
                env=it.variables,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.DEVNULL,
            )
            return stack.enter_context(ending(process))

        job = it.run("nsm", "exec", "-d", "-e", "bash", "work", "sh", "-c", COUNTS).stdout.strip()
        printed = [Path(path, f"followed-{number}") for number in range(FOLLOWERS)]
        followers: list[subprocess.Popen[bytes]] = []
        for file in printed:
            with file.open("wb") as output:
                followers.append(begin("attach", "work", "--job", job, output=output.fileno()))
        agents = 0
        stack.enter_context(Load(it.socket, threads=1))
        for number in range(kills):
            assert it.run("nsm", "run", "-e", "bash", ":").returncode == 0  # starts a supervisor
            with client_of(it) as client:
                pid = client.status().pid
                victim = agent_with_job(client, number) if number % 3 == 1 else None
            ended = os.pidfd_open(pid)
            looker = begin("attach", "work", "--job", job)
            short = begin(
                "exec", "--no-stdin", "work", "sh", "-c", f"echo x >> started-{number}; exit 7"
            )
            follower = None
            if victim is not None:
                follower = begin("attach", f"victim-{number}", "--job", "1")
            threading.Event().wait(chance.uniform(0, 0.4))
            looker.kill()
            if victim is not None:
                agents += 1
                os.kill(victim, signal.SIGKILL)
            if victim is None or chance.random() < 0.5:
                os.kill(pid, signal.SIGKILL)
                wait_gone([ended])
            else:
                os.close(ended)
            assert short.wait(END_S) == 7
            if follower is not None:
                assert follower.wait(END_S) not in (0, 6, 7), "its job has not ended by itself"
        print(f"{kills} rounds, {agents} agents")
        told = it.run("nsm", "exec", "--no-stdin", "work", "sh", "-c", "cat started-*; touch stop")
        assert told.stdout.split() == ["x"] * kills
        assert [follower.wait(END_S) for follower in followers] == [6] * FOLLOWERS
        numbers = printed[0].read_text().split()
        assert numbers == [str(number) for number in range(1, len(numbers) + 1)]
        assert len({file.read_bytes() for file in printed}) == 1
