"""One helper, as the supervisor holds it: a process, and a channel to it."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from typing import Any

import trio

from nsmd.host.monitors.monitored import PACKAGES, START
from nsmd.host.processes import has_ended, pid_of

MAX_MESSAGE = 256 * 1024

REAP_S = 1.0
"""Bound on waiting for a killed helper; the kernel needs milliseconds."""


class HelperProcess:
    """A helper that runs, or has run.

    Args:
        pidfd, control: its descriptors; owned from now on.
        child: the process, if this supervisor has started it.
    """

    def __init__(
        self, *, pidfd: int, control: socket.socket, child: subprocess.Popen[bytes] | None = None
    ) -> None:
        self.pidfd = pidfd
        self.control = control
        self._child = child

    def __repr__(self) -> str:
        return f"<HelperProcess {self.pid}>"

    @classmethod
    def start(cls) -> HelperProcess:
        """Start a helper.

        Raises:
            OSError: there is no room for another process.
        """
        with ExitStack() as owned:
            ours, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            owned.callback(ours.close)
            with its:
                # The commands that yield secrets get the environment of this user.
                child = subprocess.Popen(
                    [
                        sys.executable,
                        "-I",
                        "-c",
                        START.format("nsmd.network.secrets.helper"),
                        PACKAGES,
                    ],
                    stdin=its.fileno(),
                    stdout=subprocess.DEVNULL,
                    cwd="/",
                    start_new_session=True,
                )
            owned.callback(child.wait)
            owned.callback(child.kill)
            ours.setblocking(False)
            pidfd = os.pidfd_open(child.pid)
            owned.pop_all()
        return cls(pidfd=pidfd, control=ours, child=child)

    @classmethod
    def taken_up(cls, pidfd: int, control: int) -> HelperProcess:
        """Take over a helper that an earlier supervisor has left."""
        channel = socket.socket(fileno=control)
        channel.setblocking(False)
        return cls(pidfd=pidfd, control=channel)

    @property
    def pid(self) -> int:
        """Process id, for people; 0 if it is gone."""
        return max(0, pid_of(self.pidfd) or 0)

    @property
    def ended(self) -> bool:
        return has_ended(self.pidfd)

    async def send(self, message: Mapping[str, object], descriptors: Sequence[int] = ()) -> None:
        """Send a message.

        Raises:
            OSError: the helper has ended.
        """
        data = json.dumps(message).encode()
        while True:
            try:
                socket.send_fds(self.control, [data], list(descriptors))
            except BlockingIOError:
                await trio.lowlevel.wait_writable(self.control)
            else:
                return

    async def receive(self) -> dict[str, Any] | None:
        """Receive its next message; None at the end."""
        while True:
            try:
                await trio.lowlevel.wait_readable(self.control)
                data = self.control.recv(MAX_MESSAGE)
            except BlockingIOError:
                continue
            except (OSError, trio.ClosedResourceError):
                return None
            return json.loads(data) if data else None

    def kill(self) -> None:
        """Kill it; harmless if it has ended."""
        with suppress(ProcessLookupError):
            signal.pidfd_send_signal(self.pidfd, signal.SIGKILL)

    def close(self) -> None:
        """End it, and close our descriptors."""
        self.kill()
        if self._child is not None:
            with suppress(subprocess.TimeoutExpired):
                self._child.wait(REAP_S)
        trio.lowlevel.notify_closing(self.control)
        self.control.close()
        os.close(self.pidfd)
