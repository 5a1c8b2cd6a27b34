"""Jobs while supervisors and clients are killed at any moment."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import tempfile
import threading
from contextlib import ExitStack
from pathlib import Path

import pytest

from e2e_support import program, supervisor, wait_gone
from processes import ending

pytestmark = pytest.mark.jail

SEED = int(os.environ.get("NSM_SOAK_SEED", "20"))
FOLLOWERS = 3
END_S = 60

COUNTS = "i=0; while [ ! -e stop ]; do i=$((i+1)); echo $i; sleep .002; done; exit 6"


@pytest.mark.parametrize("kills", [5, pytest.param(40, marks=pytest.mark.slow)])
def test_nothing_is_lost_doubled_or_started_twice(kills: int) -> None:
    chance = random.Random(SEED)
    with tempfile.TemporaryDirectory(prefix="nsm-") as path, ExitStack() as stack:
        it = stack.enter_context(supervisor(Path(path), keep=True))
        stack.enter_context(ending(it.process))
        stack.callback(it.run, "nsm", "shutdown")

        def begin(*words: str, output: int = subprocess.DEVNULL) -> subprocess.Popen[bytes]:
            nsm = subprocess.Popen(
                [program("nsm"), *words],
                env=it.variables,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.DEVNULL,
            )
            return stack.enter_context(ending(nsm))

        job = it.run("nsm", "exec", "-d", "-e", "bash", "work", "sh", "-c", COUNTS).stdout.strip()
        printed = [Path(path, f"followed-{number}") for number in range(FOLLOWERS)]
        followers: list[subprocess.Popen[bytes]] = []
        for file in printed:
            with file.open("wb") as output:
                followers.append(begin("attach", "work", "--job", job, output=output.fileno()))
        for number in range(kills):
            pid = json.loads(it.run("nsm", "status", "--json").stdout)["pid"]
            ended = os.pidfd_open(pid)
            looker = begin("attach", "work", "--job", job)
            short = begin("exec", "-n", "work", "sh", "-c", f"echo x >> started-{number}; exit 7")
            threading.Event().wait(chance.uniform(0, 0.4))
            looker.kill()
            os.kill(pid, signal.SIGKILL)
            wait_gone([ended])
            assert short.wait(END_S) == 7
        told = it.run("nsm", "exec", "-n", "work", "sh", "-c", "cat started-*; touch stop")
        assert told.stdout.split() == ["x"] * kills
        assert [follower.wait(END_S) for follower in followers] == [6] * FOLLOWERS
        numbers = printed[0].read_text().split()
        assert numbers == [str(number) for number in range(1, len(numbers) + 1)]
        assert len({file.read_bytes() for file in printed}) == 1
