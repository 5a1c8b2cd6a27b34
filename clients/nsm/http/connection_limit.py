"""Limit of connections, and the choice of one to close for another.

Anybody on this machine may connect to a port and send nothing. So if there is no room, a connection
is closed that nobody with the token has used yet, the oldest first; then one that has nothing to
answer. Only if all have something to answer, the new one is refused.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

from nsm.http.connection import Connection


class ConnectionLimit:
    """Limit on the number of connections; a new one may close an older one.

    Args:
        most: connections at once.

    Attributes:
        displaced: number of connections closed for others.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._connections: set[Connection] = set()
        self._leaving: set[Connection] = set()
        self.displaced = 0

    def __repr__(self) -> str:
        return f"<ConnectionLimit of {len(self)}>"

    def __len__(self) -> int:
        return len(self._connections)

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
