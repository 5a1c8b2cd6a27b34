"""Processes of nsm's own code that the supervisor starts: monitors of programs, and those that it
talks with by a socket and that may outlive it, such as relays.
"""

from __future__ import annotations

import json
import logging
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from typing import Any, Self

import trio

import nsmd
from nsm import paths
from nsmd.host.processes import has_ended, pid_of

log = logging.getLogger(__name__)

MARGIN_S = 1.0
"""Time for a monitor to end, beyond the longest time that it takes by itself."""

_CHUNK_BYTES = 64 * 1024

START = "import sys; sys.path += sys.argv.pop(1).split(':'); from {} import main; main()"
"""Starts it isolated and without `site`, to be quick; the paths of the packages are an argument."""

PACKAGES = ":".join(
    os.path.dirname(os.path.dirname(os.path.abspath(file)))
    for file in (nsmd.__file__, paths.__file__)
)


class MonitoredProcess:
    """A monitor, and our ends of its pipes.

    Its descriptor 0 is our hold: when that is closed, it ends what it watches, and itself. It
    reports in lines of JSON. The process and the descriptors are ours until `end`.

    Args:
        stop_s: longest time that it needs to end.
        max_report_bytes: largest report; a longer one comes from a broken monitor.
    """

    def __init__(
        self,
        process: subprocess.Popen[bytes],
        hold: int,
        report: int,
        *,
        stop_s: float,
        max_report_bytes: int,
        what: str,
    ) -> None:
        self.process = process
        self.stop_s = stop_s
        self._what = what
        self._pidfd = os.pidfd_open(process.pid)
        self._hold = hold
        self._report = report
        self._max_report_bytes = max_report_bytes
        self._rest = bytearray()

    @classmethod
    def start(
        cls,
        module: str,
        arguments: Sequence[str] = (),
        *,
        inherited: Sequence[int] = (),
        variables: Mapping[str, str],
        directory: str = "/",
        stdout: int = subprocess.DEVNULL,
        stop_s: float,
        max_report_bytes: int,
        what: str,
    ) -> MonitoredProcess:
        """Start a monitor. Raises `OSError`.

        Args:
            module: module with its `main`; the arguments are the descriptor for reports, and these.
        """
        with ExitStack() as mine, ExitStack() as its:
            report, reports = _pipe(mine, its)
            # Popen's own pipe leaks if it finds no descriptor for more (Python 3.11.2).
            held, hold = _pipe(its, mine)
            os.set_blocking(report, False)
            start = [sys.executable, "-I", "-S", "-c", START.format(module), PACKAGES]
            process = subprocess.Popen(
                [*start, str(reports), *arguments],
                stdin=held,
                stdout=stdout,
                cwd=directory,
                env=dict(variables),
                pass_fds=[reports, *inherited],
                start_new_session=True,
                umask=0o022,  # programs expect that, and their children inherit it
            )
            try:
                started = cls(
                    process,
                    hold,
                    report,
                    stop_s=stop_s,
                    max_report_bytes=max_report_bytes,
                    what=what,
                )
            except BaseException:  # there was no free descriptor
                process.kill()
                process.wait()
                if process.stdout is not None:
                    process.stdout.close()
                raise
            mine.pop_all()
            return started

    def __repr__(self) -> str:
        return f"<MonitoredProcess {self._what} pid={self.process.pid}>"

    async def next_report(self) -> Mapping[str, Any] | None:
        """Read the next report; None at the end."""
        while (end := self._rest.find(b"\n")) < 0:
            if len(self._rest) > self._max_report_bytes:
                return None
            await trio.lowlevel.wait_readable(self._report)
            try:
                data = os.read(self._report, _CHUNK_BYTES)
            except BlockingIOError:
                continue
            if not data:
                return None
            self._rest += data
        line = bytes(self._rest[:end])
        del self._rest[: end + 1]
        report: Mapping[str, Any] = json.loads(line)
        return report

    def stop(self) -> None:
        """Ask for its end; harmless if it has ended. The program that it watches may have stopped
        it, like any process of the same user: so it is continued first.
        """
        if self._hold >= 0:
            os.close(self._hold)
            self._hold = -1
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._pidfd, signal.SIGCONT)

    async def end(self) -> None:
        """Stop it and wait until it has ended; kill it if it does not end. Close everything.

        Cancellation: shielded; it takes `stop_s` at most.
        """
        self.stop()
        with trio.CancelScope(shield=True):
            with trio.move_on_after(self.stop_s) as bound:
                await trio.lowlevel.wait_readable(self._pidfd)
            if bound.cancelled_caught:
                log.error("%r did not end and is killed", self)
                signal.pidfd_send_signal(self._pidfd, signal.SIGKILL)
                await trio.lowlevel.wait_readable(self._pidfd)
        self.process.wait()
        if self.process.stdout is not None:
            self.process.stdout.close()
        os.close(self._report)
        os.close(self._pidfd)


def _pipe(reader: ExitStack, writer: ExitStack) -> tuple[int, int]:
    """Make a pipe; each end is closed with its owner's stack."""
    read, written = os.pipe()
    reader.callback(os.close, read)
    writer.callback(os.close, written)
    return read, written


REAP_S = 1.0
"""Bound on waiting for a killed process; the kernel needs milliseconds."""


class ChannelProcess:
    """A Python process of nsm, and the supervisor's socket to it, which is its standard input.

    Args:
        pidfd, control: its descriptors; owned from now on.
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
        """Start the program of a module."""
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
        """Send a message. Raises `OSError`."""
        while True:
            try:
                socket.send_fds(self.control, [message], list(descriptors))
            except BlockingIOError:
                await trio.lowlevel.wait_writable(self.control)
            else:
                return

    async def receive(self, most: int) -> bytes:
        """Receive its next message; nothing at the end. Raises `trio.ClosedResourceError`."""
        while True:
            if self.control.fileno() < 0:
                raise trio.ClosedResourceError("it has been closed")
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
