"""How the supervisor's descriptors are shared out, so that it does not run out of them.

Running out shows where nobody expects it, and in sessions that were there first. So the limit is
divided beforehand, and what goes beyond a share is refused with what to do.
"""

from __future__ import annotations

import resource
from dataclasses import dataclass

MAX_CONNECTIONS = 1024
"""Connections at once, however many descriptors there are."""

MAX_PROXIED = 512
"""Connections of all sessions' code at once, through their proxies; each has two descriptors."""

PER_SESSION = 5
"""Its agent's socket and its PID 1; what a jail of its own writes to stderr, or two of the project
that a fork has copied on write; where its proxy is connected to."""

RESERVED = 192
"""Sockets, epolls and logs of the supervisor itself, 20; templates, 4 each; jails that are being
launched, up to 20 each; connections that are told that there are too many."""

LEAST = 8
"""Sessions and connections that are always tried for: with fewer it is of no use."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shares:
    """What there may be at once.

    Attributes:
        limit: descriptors.
        sessions: spares included.
        connections: of clients.
        proxied: connections through the proxies of sessions.
    """

    limit: int
    sessions: int
    connections: int
    proxied: int


def share_out(limit: int) -> Shares:
    """Divide a limit on descriptors."""
    room = limit - RESERVED
    connections = min(MAX_CONNECTIONS, max(LEAST, room // 8))
    proxied = min(MAX_PROXIED, max(LEAST, room // 32))
    sessions = max(LEAST, (room - connections - 2 * proxied) // PER_SESSION)
    return Shares(limit=limit, sessions=sessions, connections=connections, proxied=proxied)


def raise_limit() -> int:
    """Allow as many descriptors as the system lets us; returns the limit."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return hard
