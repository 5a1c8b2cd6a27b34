"""Shared parts of all proxies: look-ups of names, room for connections, counters."""

from __future__ import annotations

import trio

from nsmd.host.descriptors import MAX_PROXIED
from nsmd.network.connections import Resolve, SystemResolver
from nsmd.network.decisions import Counters
from nsmd.network.secrets.service import SecretService
from nsmd.network.upstream import NO_UPSTREAM, Upstream

MAX_BUSY = 16
"""Largest number of connections without room. Each gets an error when it has sent its request. They
use descriptors that are reserved (`nsmd.host.descriptors`); further connections are closed.
"""

MAX_ACCEPTING = 64
"""Threads in accept(2) at once, each for microseconds unless a socket was made to block."""


class ConnectionSlot:
    """Slot of one connection, held until it is over; if `busy`, there is only room for an error."""

    __slots__ = ("_limiter", "busy")

    def __init__(self, limiter: trio.CapacityLimiter, *, busy: bool) -> None:
        limiter.acquire_on_behalf_of_nowait(self)
        self._limiter = limiter
        self.busy = busy

    def leave(self) -> None:
        """Free the slot; call once."""
        self._limiter.release_on_behalf_of(self)


class Gateway:
    """Shared parts of all proxies; the supervisor has one: counts of all sessions since its start,
    a token for each connection (without one, it is refused) and for each that is being refused, for
    its descriptor, and a limit of threads that accept connections. `upstream` is the user's own
    proxy, `certificates` are those that code trusts besides the system's, as PEM.
    """

    def __init__(
        self,
        resolver: Resolve | None = None,
        *,
        max_connections: int = MAX_PROXIED,
        upstream: Upstream = NO_UPSTREAM,
    ) -> None:
        self.resolver: Resolve = resolver or SystemResolver()
        # Look-ups of hosts may hang where only that proxy knows them: its own does not wait.
        self.upstream_resolver: Resolve = resolver or SystemResolver()
        self.counters = Counters()
        self.room = trio.CapacityLimiter(max_connections)
        self.refusing = trio.CapacityLimiter(MAX_BUSY)
        self.accepting = trio.CapacityLimiter(MAX_ACCEPTING)
        self.secrets: SecretService | None = None
        self.upstream = upstream
        self.certificates = ""

    def __repr__(self) -> str:
        return f"<Gateway {self.room.borrowed_tokens} connections>"

    def take_place(self, held: int) -> ConnectionSlot | None:
        """Take a slot for a connection; None if there is not even room for an error.

        A session gets one more only while it has fewer (not counting those for errors) than are
        free. So however many sessions take all that they can get, the next one finds as much room
        as each of them has.
        """
        if held < self.room.available_tokens:
            return ConnectionSlot(self.room, busy=False)
        return self.take_place_for_error()

    def take_place_for_error(self) -> ConnectionSlot | None:
        """Take a slot for a connection that only gets an error; None if there is none."""
        try:
            return ConnectionSlot(self.refusing, busy=True)
        except trio.WouldBlock:
            return None
