"""Base of running jails: their descriptors, owned until release."""

from __future__ import annotations

import os
import signal
import socket
from contextlib import suppress

from nsmd.jail.interface import Remarks
from nsmd.jail.project_copy import ProjectCopy
from nsmd.model.policy import Policy


def hang_up(channel: socket.socket) -> None:
    """Stop reading from a channel: a task that waits for data gets end-of-file at once."""
    with suppress(OSError):
        channel.shutdown(socket.SHUT_RD)


class JailHandle:
    """Parts of `Jail` that all kinds of jails share.

    Args:
        channel: the supervisor's end of the agent's socket; owned from now on.
        pidfd: pidfd of the jail's PID 1; owned from now on.
        pid: host process id of the same process.
        policy: as in `Jail`.
        project_copy: as in `Jail`; owned from now on.

    Attributes:
        socket, pidfd, pid, remarks, template_pid, outdated: as in `Jail`.
    """

    __slots__ = (
        "_released",
        "outdated",
        "pid",
        "pidfd",
        "policy",
        "project_copy",
        "remarks",
        "socket",
        "template_pid",
    )

    def __init__(
        self,
        channel: socket.socket,
        pidfd: int,
        pid: int,
        *,
        policy: Policy | None = None,
        project_copy: ProjectCopy | None = None,
    ) -> None:
        self.policy = policy
        self.project_copy = project_copy
        self.remarks: Remarks = tuple
        self.template_pid = 0
        self.outdated = False
        self.socket = channel
        self.pidfd = pidfd
        self.pid = pid
        self._released = False

    def __repr__(self) -> str:
        return f"<{type(self).__name__} pid={self.pid}{' released' if self._released else ''}>"

    def mark_ready(self) -> None:
        """Release what only the start needed."""

    def kill(self) -> None:
        if not self._released:
            try:
                signal.pidfd_send_signal(self.pidfd, signal.SIGKILL)
            except ProcessLookupError:  # `suppress` would be three calls
                return

    def release(self) -> None:
        if self._released:
            return
        self._released = True
        self.socket.close()
        os.close(self.pidfd)
        if self.project_copy is not None:
            self.project_copy.close()
