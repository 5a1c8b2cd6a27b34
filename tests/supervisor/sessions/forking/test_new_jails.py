"""Jails of forks, as the helper has them."""

from __future__ import annotations

import os
import socket
import subprocess

import pytest

from nsmd.sessions.forking.new_jails import NewJail
from sandbox.tracing.fork_checks import missing_isolation


def test_to_kill_a_jail_that_has_ended_kills_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel gives -1 as the number of an ended process: to kill that is to kill all."""
    killed: list[int] = []

    def kill(pid: int, _number: int) -> None:
        killed.append(pid)

    monkeypatch.setattr(os, "kill", kill)
    ours, theirs = socket.socketpair()
    with subprocess.Popen(["true"]) as process:
        pidfd = os.pidfd_open(process.pid)
    with theirs:
        jail = NewJail(ours.detach(), (), None)
        jail.take_first_process(pidfd)
        jail.kill()
        assert (jail.pid, killed) == (0, [])
    os.close(pidfd)


def test_a_worker_whose_namespaces_are_not_all_known_may_not_run() -> None:
    assert "descriptors of namespaces" in missing_isolation(os.getpid(), [])
