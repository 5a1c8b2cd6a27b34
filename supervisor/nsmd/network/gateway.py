"""Shared parts of all sessions' networks: names, limits, counters."""

from __future__ import annotations

import trio

from nsmd.host.descriptors import MAX_PROXIED
from nsmd.network.decisions import Counters
from nsmd.network.resolver import Resolve, SystemResolver

MAX_SESSION_CONNECTIONS = 64
"""Of one session; further ones wait until one ends."""

MAX_BUSY = 16
"""Connections without room, each of which is told so when it has said what it wants. They are among
the descriptors that are kept back (`nsmd.host.descriptors`); what comes beyond is closed."""

MAX_ACCEPTING = 64
"""Threads in accept(2) at once, for microseconds each unless somebody has made a socket block."""


class Place:
    """Slot of one connection, held until it is over.

    Attributes:
        busy: there is no room for it, but to be told so.
    """

    __slots__ = ("_limiter", "busy")

    def __init__(self, limiter: trio.CapacityLimiter, *, busy: bool) -> None:
        limiter.acquire_on_behalf_of_nowait(self)
        self._limiter = limiter
        self.busy = busy

    def leave(self) -> None:
        """Once."""
        self._limiter.release_on_behalf_of(self)


class Gateway:
    """One for the supervisor.

    Args:
        resolver: of names; None for the host's.
        max_connections: of all sessions at once.

    Attributes:
        counters: of all sessions since the supervisor's start.
        room: a token for each connection; what finds none is refused.
        refusing: a token for each that is being refused; each has a descriptor.
        accepting: of threads that take connections.
    """

    def __init__(
        self, resolver: Resolve | None = None, *, max_connections: int = MAX_PROXIED
    ) -> None:
        self.resolver: Resolve = resolver or SystemResolver()
        self.counters = Counters()
        self.room = trio.CapacityLimiter(max_connections)
        self.refusing = trio.CapacityLimiter(MAX_BUSY)
        self.accepting = trio.CapacityLimiter(MAX_ACCEPTING)

    def __repr__(self) -> str:
        return f"<Gateway {self.room.borrowed_tokens} connections>"

    def take_place(self) -> Place | None:
        """A place for one more connection; None where it cannot even be told that there is none."""
        for limiter, busy in ((self.room, False), (self.refusing, True)):
            try:
                return Place(limiter, busy=busy)
            except trio.WouldBlock:
                continue
        return None
