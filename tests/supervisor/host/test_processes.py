"""Processes as /proc shows them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from nsmd.host.processes import children_of, has_ended, inner_pids, look_at, pid_of, send, tree_of
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
        found = look_at(process.pid)
        assert found is not None
        with pytest.raises(ProcessLookupError):
            send(found._replace(began=found.began - 1), signal.SIGKILL)
        process.stdin.close()
    assert process.returncode == 0
    with pytest.raises(ProcessLookupError):
        send(found, signal.SIGKILL)
