"""Processes below a process, and the ladder of signals; the rest is in tests of their users."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

from nsmd.host.monitor import Ladder, descendants
from nsmd.host.processes import children_of, read_process
from processes import ending

ODD = "import os, sys; sys.stdout.write('up'); sys.stdout.flush(); sys.stdin.read()"


def test_a_ladder() -> None:
    ladder = Ladder([signal.SIGTERM, signal.SIGKILL], step_s=5)
    assert (ladder.begun, ladder.step(100.0)) == (False, None)
    ladder.begin(100.0)
    ladder.begin(103.0)  # asked for again: nothing is put off
    assert ladder.begun
    assert ladder.step(100.0) is signal.SIGTERM
    assert (ladder.step(104.9), ladder.due_s) == (None, 105.0)
    assert ladder.step(105.5) is signal.SIGKILL
    assert (ladder.step(1000.0), ladder.due_s) == (None, float("inf"))


def test_who_is_below() -> None:
    code = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {ODD!r}])"
    command = [sys.executable, "-c", code]
    pipe = subprocess.PIPE
    with ending(subprocess.Popen(command, stdin=pipe, stdout=pipe)) as process:
        assert process.stdout is not None
        assert process.stdin is not None
        process.stdout.read(2)
        (below,) = children_of(process.pid)
        found = {each.pid: each for each in descendants(os.getpid())}
        assert found[process.pid].parent == os.getpid()
        assert found[below].parent == process.pid
        assert found[below].session == os.getsid(0)
        process.stdin.close()
    assert read_process(process.pid) is None
