"""A jail that an earlier supervisor started, made from its kept descriptors."""

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

    Its processes are not our children, unless this program replaced another one in the same process
    (execve(2)): then the process that made the jail has to be reaped.

    Args:
        channel: the supervisor's end of the agent's socket, non-blocking; owned from now on.
        pidfd: pidfd of the jail's PID 1; owned from now on.
        pid: host process id of the same process.
        starter_pid: process id of its maker, if that may be our child; else 0.
        policy: policy with which the session began.
        project_copy: descriptors of its overlay; owned from now on.
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
        await trio.lowlevel.wait_readable(self.pidfd)
        with suppress(ChildProcessError):
            _reap(self.pidfd)
        await reap_child(self.starter_pid)

    def stderr_text(self) -> str:
        """Empty text: the earlier supervisor got what the jail wrote."""
        return ""


async def reap_child(pid: int) -> None:
    """Reap a process that is about to end, if it is our child: then nobody else has its id.

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
    """Open a pidfd of a child of ours, which nobody else reaps meanwhile.

    Raises:
        ChildProcessError, ProcessLookupError: it is no child of ours.
    """
    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    return os.pidfd_open(pid)


def _reap(pidfd: int) -> None:
    """Reap a child.

    Raises:
        ChildProcessError: it is no child of ours.
    """
    os.waitid(os.P_PIDFD, pidfd, os.WEXITED | os.WNOHANG)
