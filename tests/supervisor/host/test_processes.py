"""Processes as /proc shows them, and the signals that they get."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest

import nsmd.host.processes
import sandbox.processes
from nsmd.host.monitor import Ladder, descendants
from nsmd.host.processes import (
    children_of,
    has_ended,
    inner_pids,
    pid_of,
    read_process,
    send_signals,
    tree_of,
)
from processes import ending

if TYPE_CHECKING:
    from pathlib import Path


ODD = "import os, sys; sys.stdout.write('up'); sys.stdout.flush(); sys.stdin.read()"


def test_more_children_than_the_kernel_gives_at_a_time(tmp_path: Path) -> None:
    below = range(1_000_000, 1_020_000)
    (tmp_path / "7/task/7").mkdir(parents=True)
    (tmp_path / "7/task/7/children").write_text(" ".join(map(str, below)))
    assert children_of(7, str(tmp_path)) == set(below)
    assert tree_of(7, str(tmp_path)) == [7, *below]


def test_a_descriptor_of_a_process() -> None:
    with ending(subprocess.Popen([sys.executable, "-c", ODD], stdin=subprocess.PIPE)) as process:
        assert process.stdin is not None
        pidfd = os.pidfd_open(process.pid)
        assert (pid_of(pidfd), has_ended(pidfd)) == (process.pid, False)
        assert inner_pids(process.pid)[0] == process.pid
        process.stdin.close()
    assert (pid_of(pidfd), has_ended(pidfd)) == (0, True)
    os.close(pidfd)
    assert pid_of(0) is None
    assert children_of(process.pid) == set()


def test_a_successor_is_not_sent_anything() -> None:
    command = [sys.executable, "-c", ODD]
    with ending(subprocess.Popen(command, stdin=subprocess.PIPE)) as process:
        assert process.stdin is not None
        found = read_process(process.pid)
        assert found is not None
        with pytest.raises(ProcessLookupError):
            send_signals(found._replace(began=found.began - 1), signal.SIGKILL)
        process.stdin.close()
    assert process.returncode == 0
    with pytest.raises(ProcessLookupError):
        send_signals(found, signal.SIGKILL)


@pytest.mark.parametrize("module", [nsmd.host.processes, sandbox.processes])
def test_only_children_are_signalled_by_their_number(module: Any) -> None:
    """The agent and the supervisor each have their own functions for that."""
    command = ["sh", "-c", "sleep 600 & echo $!; wait $!; echo $?"]
    with ending(subprocess.Popen(command, stdout=subprocess.PIPE)) as process:
        assert process.stdout is not None
        below = int(process.stdout.readline())
        module.signal_child(below, signal.SIGKILL)
        module.signal_group(below, signal.SIGKILL)
        found = read_process(below)
        assert found is not None
        send_signals(found, signal.SIGTERM)
        assert process.stdout.readline() == b"143\n"
        module.signal_child(process.pid, signal.SIGCONT)
        process.wait()
        module.signal_child(process.pid, signal.SIGKILL)
        for number in (0, 1, -1):
            with pytest.raises(AssertionError):
                module.signal_child(number, signal.SIGKILL)


def test_the_agent_signals_no_successor() -> None:
    with ending(subprocess.Popen(["sleep", "600"])) as process:
        row = sandbox.processes.read_process(process.pid)
        assert row is not None
        row.started -= 1
        sandbox.processes.signal_process(row, signal.SIGKILL)
        row.started += 1
        sandbox.processes.signal_process(row, signal.SIGTERM)
        assert process.wait() == -signal.SIGTERM


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


def test_descendants_of_a_process_are_found() -> None:
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
