"""Connections that a relay passes bytes between, checks of those that the agent passes, and counts
of ports: in a memory file that the relay writes and the supervisor reads. So the supervisor need
not ask, and the counts outlive either of them.

Standard library only. The agent may have kept a copy of the socket inside and make it block, so no
call waits (MSG_DONTWAIT); splice(2) would, and is no faster here.
"""

from __future__ import annotations

import os
import socket
import struct
import sys
from collections import deque

SLOTS = 64
"""Places for ports."""

OPEN, TOTAL, REFUSED, FAILED, SENT, RECEIVED, FULL = range(7)
"""Counts of a port: connections now and in all, those that no program took inside and those that
failed otherwise, bytes into the session and out of it, and 1 while more connections wait because
there are too many.
"""

EACH = 8
"""Number of counts that there is room for."""

_SLOT = struct.Struct(f"={EACH}Q")

FILE_BYTES = SLOTS * _SLOT.size


def read_counts(file: int, slot: int) -> tuple[int, ...]:
    """Read the counts of a port from the memory file."""
    counts: tuple[int, ...] = _SLOT.unpack(os.pread(file, _SLOT.size, slot * _SLOT.size))
    return counts


def clear_counts(file: int, slot: int) -> None:
    """Set the counts of a new port to 0."""
    os.pwrite(file, bytes(_SLOT.size), slot * _SLOT.size)


class PortCounts:
    """Counts of one port, in the relay; the file is mapped, so that one costs no system call."""

    def __init__(self, memory: memoryview, slot: int) -> None:
        self._place: memoryview | None = memory[slot * _SLOT.size : (slot + 1) * _SLOT.size]
        for which in (OPEN, FULL):  # as an earlier relay has left them
            self._place[8 * which : 8 * which + 8] = bytes(8)

    def add(self, which: int, number: int) -> None:
        """Add to a count."""
        if self._place is not None:
            field = self._place[8 * which : 8 * which + 8]
            known = int.from_bytes(field, sys.byteorder)
            field[:] = max(0, known + number).to_bytes(8, sys.byteorder)

    def leave(self) -> None:
        """Count no more: the port is closed, and the place may become another's."""
        self._place = None


PIECE_BYTES = 64 * 1024
"""Largest piece that is read at once; at most one for each direction of a connection waits."""

TURN_PIECES = 16
"""Pieces that one direction moves before the next has its turn."""

NOWAIT = socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL

_LINGER_NOT, _RESET = struct.pack("ii", 0, 0), struct.pack("ii", 1, 0)


class AgentPassingError(Exception):
    """The agent did what ours does not."""


def adopt(descriptor: int | None) -> socket.socket | None:
    """Take a descriptor that the agent passed, if it did: an `AgentPassingError` if no socket."""
    if descriptor is None:
        return None
    try:
        return socket.socket(fileno=descriptor)
    except OSError:
        os.close(descriptor)
        raise AgentPassingError("what came for a port is not a socket") from None


def check_connection(passed: socket.socket | None, port: int) -> socket.socket:
    """Check that what came is a connection to a port of a loopback, and return it."""
    if passed is None:
        raise AgentPassingError("no socket came for a port")
    expected = (
        (socket.SO_TYPE, (socket.SOCK_STREAM,)),
        (socket.SO_DOMAIN, (socket.AF_INET, socket.AF_INET6)),
        (socket.SO_PROTOCOL, (socket.IPPROTO_TCP,)),
        (socket.SO_ACCEPTCONN, (0,)),
    )
    for option, values in expected:
        if passed.getsockopt(socket.SOL_SOCKET, option) not in values:
            raise AgentPassingError("what came for a port is not a TCP connection")
    address = passed.getpeername()
    if address[0] not in ("127.0.0.1", "::1") or address[1] != port:
        raise AgentPassingError("the connection that came leads elsewhere than to the port")
    return passed


class RelayedPort:
    """An open port: its listening socket, and where its connections go.

    The agent was not asked yet for those that are `waiting`, and has not answered for so many that
    it was `asked` for.
    """

    def __init__(self, number: int, listener: socket.socket, counts: PortCounts) -> None:
        self.number = number
        self.listener = listener
        self.counts = counts
        self.waiting: deque[RelayedConnection] = deque()
        self.asked = 0


class RelayedEnd:
    """One end of a connection.

    Attributes:
        connection: the connection.
        inside: it is the end in the session.
        readable, writable: False once the kernel said that it would wait.
        hung: the peer has sent its last byte, read or not.
        ended: that byte was read; `shut`: the end was passed on to this end's peer.
        unsent: bytes for this end's peer.
    """

    __slots__ = (
        "connection",
        "ended",
        "hung",
        "inside",
        "readable",
        "shut",
        "socket",
        "unsent",
        "writable",
    )

    def __init__(self, own: socket.socket, connection: RelayedConnection, *, inside: bool) -> None:
        self.socket = own
        self.connection = connection
        self.inside = inside
        self.readable = self.writable = True
        self.hung = self.ended = self.shut = False
        self.unsent: memoryview | None = None

    def close(self, *, reset: bool) -> None:
        """Close it."""
        if self.socket.family != socket.AF_UNIX:
            # Otherwise close may wait: whoever has a copy of the socket may have said so.
            linger = _RESET if reset else _LINGER_NOT
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
        self.socket.close()

    def move_to(self, target: RelayedEnd, buffer: memoryview) -> bool:
        """Move bytes to the other end; True if there may be more at once. The buffer has room for
        `PIECE_BYTES`. Like all methods below, it raises `OSError` if an end was reset.
        """
        for _ in range(TURN_PIECES):
            if not target.writable:
                return False
            piece = target.unsent
            if piece is None and self.ended:
                target.pass_end_on()
                return False
            if piece is None:
                if not self.readable:
                    return False
                piece = self._read(buffer)
            if piece is not None:
                target.write(piece)
        return True

    def _read(self, buffer: memoryview) -> memoryview | None:
        """Read what there is; None if nothing is, or nothing more comes."""
        try:
            size = self.socket.recv_into(buffer, PIECE_BYTES, NOWAIT)
        except BlockingIOError:
            self.readable = False
            return None
        if not size:
            self.ended = True
            return None
        if size < PIECE_BYTES and not self.hung:
            self.readable = False  # an event comes with the next byte (epoll(7))
        return buffer[:size]

    def write(self, piece: memoryview) -> None:
        """Write bytes (`unsent` first), and keep those for which there is no room."""
        try:
            sent = self.socket.send(piece, NOWAIT)
        except BlockingIOError:
            self.writable = False
            sent = 0
        self.connection.port.counts.add(SENT if self.inside else RECEIVED, sent)
        rest = piece[sent:]
        if self.unsent is None and rest:  # it is in a buffer for all connections
            rest = memoryview(bytes(rest))
        self.unsent = rest or None

    def pass_end_on(self) -> None:
        """Tell the peer that no byte follows."""
        if not self.shut:
            self.shut = True
            self.socket.shutdown(socket.SHUT_WR)


class RelayedConnection:
    """A connection of the host, and soon the one that the agent made for it."""

    __slots__ = ("asked_s", "host", "inside", "port", "queued")

    def __init__(self, connection: socket.socket, port: RelayedPort) -> None:
        self.host = RelayedEnd(connection, self, inside=False)
        self.inside: RelayedEnd | None = None
        self.port = port
        self.asked_s = 0.0
        self.queued = False

    @property
    def ends(self) -> tuple[RelayedEnd, ...]:
        return (self.host,) if self.inside is None else (self.host, self.inside)

    @property
    def over(self) -> bool:
        """True if both directions have ended."""
        return all(end.shut for end in self.ends)

    def join(self, inside: socket.socket) -> None:
        """Set the end in the session."""
        self.inside = RelayedEnd(inside, self, inside=True)
        for end in self.ends:
            if end.socket.family != socket.AF_UNIX:
                end.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def move(self, buffer: memoryview) -> bool:
        """Move bytes in both directions; True if there may be more at once."""
        if self.inside is None:
            return False
        more = self.host.move_to(self.inside, buffer)
        return self.inside.move_to(self.host, buffer) or more
