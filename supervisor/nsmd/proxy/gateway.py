"""What the networks of all sessions share: names, room, counters."""

from __future__ import annotations

import trio

from nsmd.descriptors import MAX_PROXIED
from nsmd.proxy.decisions import Counters
from nsmd.proxy.reaching import Resolve, SystemResolver

MAX_SESSION_CONNECTIONS = 64
"""Of one session; further ones wait until one ends."""

MAX_ACCEPTING = 64
"""Threads in accept(2) at once, for microseconds each unless somebody has made a socket block."""


class Gateway:
    """One for the supervisor.

    Args:
        resolver: of names; None for the host's.
        max_connections: of all sessions at once.

    Attributes:
        counters: of all sessions since the supervisor's start.
        room: a token for each connection; what finds none is refused.
        accepting: of threads that take connections.
    """

    def __init__(
        self, resolver: Resolve | None = None, *, max_connections: int = MAX_PROXIED
    ) -> None:
        self.resolver: Resolve = resolver or SystemResolver()
        self.counters = Counters()
        self.room = trio.CapacityLimiter(max_connections)
        self.accepting = trio.CapacityLimiter(MAX_ACCEPTING)

    def __repr__(self) -> str:
        return f"<Gateway {self.room.borrowed_tokens} connections>"
