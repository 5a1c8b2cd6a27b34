"""Connections of a listening socket: their acceptance, and the limit of their number.

Anybody on this machine may connect to a port and send nothing. So if there is no room, a connection
is closed that nobody with the token has used yet, the oldest first; then one that has nothing to
answer. Only if all have something to answer, the new one is refused.
"""

from __future__ import annotations

import errno
import logging
import math
from typing import TYPE_CHECKING

import trio

if TYPE_CHECKING:
    import socket
    from collections.abc import Iterable

    from nsm.http.connection import Connection

log = logging.getLogger(__name__)

PAUSE_S = 1.0
"""Pause after a connection could not be accepted because descriptors ran out."""

MAX_TURNED_AWAY = 16
"""Refused connections that get an answer at the same time. More are closed without one."""

_SHORT_OF = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)


async def accept(listener: socket.socket) -> trio.SocketStream:
    """Wait for the next connection of a non-blocking socket, even while there are no descriptors
    for it."""
    waiting = trio.socket.from_stdlib_socket(listener)
    while True:
        try:
            accepted, _ = await waiting.accept()
            return trio.SocketStream(accepted)
        except OSError as error:
            if error.errno in _SHORT_OF:
                log.warning("a client over HTTP has to wait: %s", error.strerror)
                await trio.sleep(PAUSE_S)


class ConnectionLimit:
    """Limit on the number of connections; a new one may close an older one.

    Attributes:
        displaced: number of connections closed for others.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._connections: set[Connection] = set()
        self._leaving: set[Connection] = set()
        self._turned_away = 0
        self.displaced = 0

    def __len__(self) -> int:
        return len(self._connections)

    async def serve(self, connection: Connection) -> None:
        """Serve a connection to its end, or refuse it."""
        if self.admit(connection):
            try:
                await connection.serve()
            finally:
                self.leave(connection)
            return
        self._turned_away += 1
        try:
            await connection.refuse(silently=self._turned_away > MAX_TURNED_AWAY)
        finally:
            self._turned_away -= 1

    def admit(self, connection: Connection) -> bool:
        """Admit a connection; False if there is no room."""
        if len(self._connections) - len(self._leaving) >= self._most:
            other = _least(self._connections - self._leaving)
            if other is None:
                return False
            self.displaced += 1
            self._leaving.add(other)
            other.end()
        self._connections.add(connection)
        return True

    def end_admitted(self) -> None:
        """Close connections that were admitted by a token that is no longer valid."""
        for connection in self._connections - self._leaving:
            if connection.admitted:
                self._leaving.add(connection)
                connection.end()

    def leave(self, connection: Connection) -> None:
        """Remove a closed connection."""
        self._connections.discard(connection)
        self._leaving.discard(connection)


def _least(connections: Iterable[Connection]) -> Connection | None:
    """Choose the connection that is closed first; None if none may be."""
    free = [
        each for each in connections if not (each.admitted and math.isinf(each.waiting_since_s))
    ]
    return min(free, key=lambda each: (each.admitted, each.waiting_since_s), default=None)
