"""One relay, as the supervisor holds it: a process, and a channel to it."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Sequence
from contextlib import ExitStack, suppress

import trio

from nsmd.fdstore import records
from nsmd.fdstore.holder import memory_file
from nsmd.host.monitors.monitored import PACKAGES, START
from nsmd.host.processes import has_ended, pid_of
from nsmd.model import names
from nsmd.ports.records import RELAY, LeftRelay, RelayRecord

MAX_MESSAGE = 256

REAP_S = 1.0
"""Bound on waiting for a killed relay; the kernel needs milliseconds."""


class RelayProcess:
    """A relay that runs, or has run.

    Args:
        record: facts for a later supervisor.
        pidfd, control: its descriptors; owned from now on.
        child: the process, if this supervisor has started it.

    Attributes:
        began_s: start, on trio's clock.
    """

    def __init__(
        self,
        record: RelayRecord,
        *,
        pidfd: int,
        control: socket.socket,
        child: subprocess.Popen[bytes] | None = None,
    ) -> None:
        self.record = record
        self.began_s = trio.current_time()
        self._pidfd = pidfd
        self._control = control
        self._child = child

    def __repr__(self) -> str:
        return f"<RelayProcess {self.record.id} of session {self.record.session}>"

    @classmethod
    def start(cls, session_id: str, agent: int, counts: int) -> RelayProcess:
        """Start a relay.

        Args:
            agent: channel to the session's agent; the caller closes it.
            counts: memory file for the counts; likewise.

        Raises:
            OSError: there is no room for another process.
        """
        with ExitStack() as owned:
            ours, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            owned.callback(ours.close)
            with its:
                child = subprocess.Popen(
                    [sys.executable, "-I", "-S", "-c", START.format("nsmd.ports.relay"), PACKAGES],
                    stdin=its.fileno(),
                    stdout=subprocess.DEVNULL,
                    cwd="/",
                    env={},
                    start_new_session=True,
                )
            owned.callback(child.wait)
            owned.callback(child.kill)
            ours.setblocking(False)
            pidfd = os.pidfd_open(child.pid)
            owned.callback(os.close, pidfd)
            record = RelayRecord(
                id=names.fresh_id(()),
                session=session_id,
                control=records.identity(ours.fileno()),
                counts=records.identity(counts),
            )
            started = cls(record, pidfd=pidfd, control=ours, child=child)
            socket.send_fds(ours, [b"counts"], [counts])
            socket.send_fds(ours, [b"agent"], [agent])
            owned.pop_all()
        return started

    @classmethod
    def taken_up(cls, left: LeftRelay) -> RelayProcess:
        """Take over a relay that an earlier supervisor has left."""
        control = socket.socket(fileno=left.control)
        control.setblocking(False)
        return cls(left.record, pidfd=left.pidfd, control=control)

    @property
    def name(self) -> str:
        """Name in the descriptor store."""
        return RELAY + self.record.id

    @property
    def pid(self) -> int:
        """Process id, for people; -1 if it is gone."""
        return pid_of(self._pidfd) or 0

    @property
    def ended(self) -> bool:
        return has_ended(self._pidfd)

    @property
    def lived_s(self) -> float:
        return trio.current_time() - self.began_s

    def open(self, slot: int, number: int, listener: socket.socket) -> None:
        """Have it accept connections. Its end, if it has ended, is seen elsewhere."""
        with suppress(OSError):
            socket.send_fds(self._control, [b"open %d %d" % (slot, number)], [listener.fileno()])

    def close_port(self, slot: int) -> None:
        """Have it accept no more."""
        with suppress(OSError):
            self._control.send(b"close %d" % slot)

    async def wait(self) -> str:
        """Wait until it has ended, or found that the agent lies.

        Returns:
            What the agent did; empty if the relay has ended.
        """
        with suppress(trio.ClosedResourceError):  # it was found to have ended, and closed
            while message := await self._receive():
                word, _, text = message.partition(" ")
                if word == "wrong":
                    return text
            await trio.lowlevel.wait_readable(self._pidfd)
        return ""

    async def _receive(self) -> str:
        """Receive its next message; empty at the end."""
        while True:
            await trio.lowlevel.wait_readable(self._control)
            try:
                return self._control.recv(MAX_MESSAGE).decode("ascii", "replace")
            except BlockingIOError:
                continue
            except OSError:
                return ""

    def part(self) -> None:
        """Leave it alone: it accepts no more, and ends with its last connection."""
        with suppress(OSError):
            self._control.shutdown(socket.SHUT_WR)

    def kill(self) -> None:
        """Kill it; harmless if it has ended."""
        with suppress(ProcessLookupError):
            signal.pidfd_send_signal(self._pidfd, signal.SIGKILL)

    def everything(self, counts: int) -> Sequence[int]:
        """Descriptors to store, with a new record; the caller closes that, which comes first.

        Args:
            counts: memory file of the counts.

        Raises:
            OSError: there is no free descriptor.
        """
        file = memory_file(records.encode(self.record))
        return [file, self._pidfd, self._control.fileno(), counts]

    def close(self) -> None:
        """Close our descriptors, and reap it if it is our child and has ended."""
        if self._child is not None:
            with suppress(subprocess.TimeoutExpired):
                self._child.wait(REAP_S)
        trio.lowlevel.notify_closing(self._control)
        trio.lowlevel.notify_closing(self._pidfd)
        self._control.close()
        os.close(self._pidfd)
