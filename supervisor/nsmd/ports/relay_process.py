"""One relay, as the supervisor holds it: a process, and a channel to it."""

from __future__ import annotations

import socket
import subprocess
import time
from contextlib import suppress

import trio

from nsm.dataclass import dataclass
from nsmd.host.child_processes import ChannelProcess
from nsmd.model import names

MODULE = "nsmd.ports.relay"
MAX_MESSAGE = 256

RELAY = "relay-"
"""Beginning of the names in the descriptor store."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RelayRecord:
    """Facts about a relay of a session, for the next supervisor.

    Attributes:
        control, counts: identities (`nsmd.fdstore.records.identity`) of its descriptors.
    """

    id: str
    session: str
    control: str
    counts: str


class RelayProcess(ChannelProcess):
    """A relay that runs, or has run."""

    def __init__(
        self, *, pidfd: int, control: socket.socket, child: subprocess.Popen[bytes] | None = None
    ) -> None:
        super().__init__(pidfd=pidfd, control=control, child=child)
        self.id = names.fresh_id(())
        self._began_s = time.monotonic()

    @property
    def name(self) -> str:
        """Name in the descriptor store."""
        return RELAY + self.id

    @property
    def lived_s(self) -> float:
        return time.monotonic() - self._began_s

    def open(self, slot: int, number: int, listener: socket.socket) -> None:
        """Have it accept connections. Its end, if it has ended, is seen elsewhere."""
        with suppress(OSError):
            socket.send_fds(self.control, [b"open %d %d" % (slot, number)], [listener.fileno()])

    def close_port(self, slot: int) -> None:
        """Have it accept no more."""
        with suppress(OSError):
            self.control.send(b"close %d" % slot)

    async def wait(self) -> str:
        """Wait for its end, or until it found that the agent passed something wrong.

        Returns what the agent did; nothing if the relay has ended.
        """
        with suppress(trio.ClosedResourceError):  # it was found to have ended, and closed
            while message := await self.receive(MAX_MESSAGE):
                word, _, text = message.decode("ascii", "replace").partition(" ")
                if word == "wrong":
                    return text
            await trio.lowlevel.wait_readable(self.pidfd)
        return ""

    def part(self) -> None:
        """Leave it alone: it accepts no more, and ends with its last connection."""
        with suppress(OSError):
            self.control.shutdown(socket.SHUT_WR)


def start_relay(agent: int, counts: int) -> RelayProcess:
    """Start a relay.

    Args:
        agent: channel to the session's agent; the caller closes it.
        counts: memory file for the counts; likewise.

    Raises:
        OSError: there is no room for another process.
    """
    relay = RelayProcess.start(MODULE, options=("-S",), variables={})
    try:
        socket.send_fds(relay.control, [b"counts"], [counts])
        socket.send_fds(relay.control, [b"agent"], [agent])
    except BaseException:
        relay.end()
        raise
    return relay
