"""How the supervisor's descriptors are shared out, so that it does not run out of them.

Running out shows where nobody expects it, and in sessions that were there first. So the limit is
divided beforehand, and what goes beyond a share is refused with what to do.
"""

from __future__ import annotations

import resource
from collections.abc import Sequence
from dataclasses import dataclass

MAX_CONNECTIONS = 1024
"""Connections at once, however many descriptors there are."""

MAX_PROXIED = 512
"""Connections of all sessions' code at once, through their proxies; each has two descriptors."""

MAX_BOXES = 64
"""At once, however many descriptors there are."""

PER_BOX = 10
"""Its process, its two sockets, listened on through a copy of each, that of its proxy, and four
connections on which one may come. Its other connections are among those of clients, or of proxies.
"""

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
    """Shares of the descriptors: how many of each use there may be at once.

    Attributes:
        limit: descriptors.
        sessions: spares included.
        connections: of clients, those in boxes included.
        proxied: connections through the proxies of sessions and boxes.
        boxes: that have sockets.
    """

    limit: int
    sessions: int
    connections: int
    proxied: int
    boxes: int = MAX_BOXES


class Quota:
    """Limit on a number in use at once, shared by all who draw on it.

    Args:
        most: how many.
        whose: begins the sentence that there are so many already: "The box has".

    Attributes:
        taken: how many there are, those that are told that there are too many included.
    """

    def __init__(self, most: int, whose: str) -> None:
        self.most = most
        self.whose = whose
        self.taken = 0

    def __repr__(self) -> str:
        return f"<Quota {self.whose} {self.taken} of {self.most}>"


def draw(quotas: Sequence[Quota]) -> tuple[Sequence[Quota], Quota | None]:
    """Count one more, up to the first of these of which there are too many.

    Returns:
        Those in which it is counted, for the caller to take it off, and the one that is full.
    """
    for number, quota in enumerate(quotas, 1):
        quota.taken += 1
        if quota.taken > quota.most:
            return quotas[:number], quota
    return quotas, None


def share_out(limit: int, http: int = 0) -> Shares:
    """Divide a limit on descriptors.

    Args:
        http: connections over HTTP, which have a limit of their own.
    """
    room = limit - RESERVED - http
    connections = min(MAX_CONNECTIONS, max(LEAST, room // 8))
    proxied = min(MAX_PROXIED, max(LEAST, room // 32))
    boxes = min(MAX_BOXES, max(LEAST, room // 64))
    sessions = max(LEAST, (room - connections - 2 * proxied - PER_BOX * boxes) // PER_SESSION)
    return Shares(
        limit=limit, sessions=sessions, connections=connections, proxied=proxied, boxes=boxes
    )


def raise_limit() -> int:
    """Allow as many descriptors as the system lets us; returns the limit."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return hard
