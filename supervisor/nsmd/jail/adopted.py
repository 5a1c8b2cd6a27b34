"""A jail that an earlier supervisor started, by the descriptors that were kept of it."""

from __future__ import annotations

import os
import socket
from contextlib import suppress

import trio

from nsmd.jail.handle import JailHandle
from nsmd.jail.project_copy import ProjectCopy
from nsmd.model.policy import Policy


class AdoptedJail(JailHandle):
    """Jail of an earlier supervisor, by its kept descriptors.

    Its processes are nobody's children here, but after a program of the same process was replaced
    by this one (execve(2)): then what made the jail is to be reaped.

    Args:
        channel: the supervisor's end of the agent's socket, non-blocking; owned from now on.
        pidfd: of the jail's PID 1; owned from now on.
        pid: the same process, on the host.
        starter_pid: process id of what made it, where that may be our child; else 0.
        policy: of the session as it began.
        project_copy: owned from now on.
    """

    def __init__(
        self,
        channel: socket.socket,
        pidfd: int,
        pid: int,
        *,
        starter_pid: int = 0,
        policy: Policy | None = None,
        project_copy: ProjectCopy | None = None,
    ) -> None:
        super().__init__(channel, pidfd, pid, policy=policy, project_copy=project_copy)
        self.starter_pid = starter_pid

    async def wait(self) -> None:
        if self._released:
            return
        await trio.lowlevel.wait_readable(self._pidfd)
        with suppress(ChildProcessError):
            _reap(self._pidfd)
        await reap_child(self.starter_pid)

    def stderr_text(self) -> str:
        """Return an empty text: the jail wrote it for the supervisor that started it."""
        return ""


async def reap_child(pid: int) -> None:
    """Collect a process that is about to end, if it is a child of ours: its id is its own then.

    Args:
        pid: 0 for none.

    Cancellation: loses nothing; call it again.
    """
    if not pid:
        return
    try:
        pidfd = _open_child(pid)
    except (ChildProcessError, ProcessLookupError):
        return
    try:
        await trio.lowlevel.wait_readable(pidfd)
        with suppress(ChildProcessError):
            _reap(pidfd)
    finally:
        os.close(pidfd)


def _open_child(pid: int) -> int:
    """A descriptor of a child of ours, which nobody else reaps meanwhile.

    Raises:
        ChildProcessError, ProcessLookupError: it is none.
    """
    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    return os.pidfd_open(pid)


def _reap(pidfd: int) -> None:
    """
    Raises:
        ChildProcessError: it is no child of ours.
    """
    os.waitid(os.P_PIDFD, pidfd, os.WEXITED | os.WNOHANG)
