"""One relay, as the supervisor holds it: a process, and a channel to it."""

from __future__ import annotations

import socket
from collections.abc import Sequence
from contextlib import suppress

import trio

from nsmd.fdstore import records
from nsmd.fdstore.holder import memory_file
from nsmd.host.child_processes import ChannelProcess
from nsmd.model import names
from nsmd.ports.records import RELAY, LeftRelay, RelayRecord

MAX_MESSAGE = 256


class RelayProcess:
    """A relay that runs, or has run.

    Args:
        record: facts for a later supervisor.
        process: owned from now on.

    Attributes:
        began_s: start, on trio's clock.
    """

    def __init__(self, record: RelayRecord, process: ChannelProcess) -> None:
        self.record = record
        self.began_s = trio.current_time()
        self._process = process

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
        process = ChannelProcess.start("nsmd.ports.relay", options=("-S",), variables={})
        try:
            record = RelayRecord(
                id=names.fresh_id(()),
                session=session_id,
                control=records.identity(process.control.fileno()),
                counts=records.identity(counts),
            )
            socket.send_fds(process.control, [b"counts"], [counts])
            socket.send_fds(process.control, [b"agent"], [agent])
        except BaseException:
            process.kill()
            process.close()
            raise
        return cls(record, process)

    @classmethod
    def taken_up(cls, left: LeftRelay) -> RelayProcess:
        """Take over a relay that an earlier supervisor has left."""
        return cls(left.record, ChannelProcess.taken_up(left.pidfd, left.control))

    @property
    def name(self) -> str:
        """Name in the descriptor store."""
        return RELAY + self.record.id

    @property
    def pid(self) -> int:
        """Process id, for people; 0 if it is gone."""
        return self._process.pid

    @property
    def ended(self) -> bool:
        return self._process.ended

    @property
    def lived_s(self) -> float:
        return trio.current_time() - self.began_s

    def open(self, slot: int, number: int, listener: socket.socket) -> None:
        """Have it accept connections. Its end, if it has ended, is seen elsewhere."""
        with suppress(OSError):
            socket.send_fds(
                self._process.control, [b"open %d %d" % (slot, number)], [listener.fileno()]
            )

    def close_port(self, slot: int) -> None:
        """Have it accept no more."""
        with suppress(OSError):
            self._process.control.send(b"close %d" % slot)

    async def wait(self) -> str:
        """Wait until it has ended, or found that the agent passed something wrong.

        Returns:
            What the agent did; empty if the relay has ended.
        """
        with suppress(trio.ClosedResourceError):  # it was found to have ended, and closed
            while message := await self._process.receive(MAX_MESSAGE):
                word, _, text = message.decode("ascii", "replace").partition(" ")
                if word == "wrong":
                    return text
            await trio.lowlevel.wait_readable(self._process.pidfd)
        return ""

    def part(self) -> None:
        """Leave it alone: it accepts no more, and ends with its last connection."""
        with suppress(OSError):
            self._process.control.shutdown(socket.SHUT_WR)

    def kill(self) -> None:
        """Kill it; harmless if it has ended."""
        self._process.kill()

    def everything(self, counts: int) -> Sequence[int]:
        """Descriptors to store, with a new record; the caller closes that, which comes first.

        Args:
            counts: memory file of the counts.

        Raises:
            OSError: there is no free descriptor.
        """
        file = memory_file(records.encode(self.record))
        return [file, self._process.pidfd, self._process.control.fileno(), counts]

    def close(self) -> None:
        """Close our descriptors, and reap it if it is our child and has ended."""
        self._process.close()
