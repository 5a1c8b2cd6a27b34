"""Python processes of nsm that talk with the supervisor and may outlive it, such as relays."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from typing import Self

import trio

from nsmd.host.monitors.monitored import PACKAGES, START
from nsmd.host.processes import has_ended, pid_of

REAP_S = 1.0
"""Bound on waiting for a killed process; the kernel needs milliseconds."""


class ChannelProcess:
    """A Python process of nsm, and the supervisor's socket to it, which is its standard input.

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
        return f"<{type(self).__name__} {self.pid}>"

    @classmethod
    def start(
        cls, module: str, *, options: Sequence[str] = (), variables: Mapping[str, str] | None = None
    ) -> Self:
        """Start the program of a module.

        Args:
            options: further ones of Python.
            variables: its environment; None for this one.

        Raises:
            OSError: there is no room for another process.
        """
        with ExitStack() as owned:
            ours, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            owned.callback(ours.close)
            with its:
                child = subprocess.Popen(
                    [sys.executable, "-I", *options, "-c", START.format(module), PACKAGES],
                    stdin=its.fileno(),
                    stdout=subprocess.DEVNULL,
                    cwd="/",
                    env=variables,
                    start_new_session=True,
                )
            owned.callback(child.wait)
            owned.callback(child.kill)
            ours.setblocking(False)
            pidfd = os.pidfd_open(child.pid)
            owned.pop_all()
        return cls(pidfd=pidfd, control=ours, child=child)

    @classmethod
    def taken_up(cls, pidfd: int, control: int) -> Self:
        """Take over a program that an earlier supervisor has left."""
        channel = socket.socket(fileno=control)
        channel.setblocking(False)
        return cls(pidfd=pidfd, control=channel)

    @property
    def pid(self) -> int:
        """Process id, for people; 0 if it is gone."""
        return pid_of(self.pidfd) or 0

    @property
    def ended(self) -> bool:
        return has_ended(self.pidfd)

    async def send(self, message: bytes, descriptors: Sequence[int] = ()) -> None:
        """Send a message.

        Raises:
            OSError: it has ended.
        """
        while True:
            try:
                socket.send_fds(self.control, [message], list(descriptors))
            except BlockingIOError:
                await trio.lowlevel.wait_writable(self.control)
            else:
                return

    async def receive(self, most: int) -> bytes:
        """Receive its next message; nothing at the end.

        Raises:
            trio.ClosedResourceError: it was closed meanwhile.
        """
        while True:
            await trio.lowlevel.wait_readable(self.control)
            try:
                return self.control.recv(most)
            except BlockingIOError:
                continue
            except OSError:
                return b""

    def kill(self) -> None:
        """Kill it; harmless if it has ended."""
        with suppress(ProcessLookupError):
            signal.pidfd_send_signal(self.pidfd, signal.SIGKILL)

    def close(self) -> None:
        """Close our descriptors, and reap it if it is our child and has ended."""
        if self._child is not None:
            with suppress(subprocess.TimeoutExpired):
                self._child.wait(REAP_S)
        trio.lowlevel.notify_closing(self.control)
        trio.lowlevel.notify_closing(self.pidfd)
        self.control.close()
        os.close(self.pidfd)

    def end(self) -> None:
        """End it, and close our descriptors."""
        self.kill()
        self.close()
