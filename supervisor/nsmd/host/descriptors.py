"""Division of the supervisor's descriptors between their uses, so that it does not run out of them.

Running out would hit unexpected places, and sessions that already exist. So the limit is divided in
advance, and requests beyond a share are refused, with what to do.
"""

from __future__ import annotations

import resource
from collections.abc import Sequence

from nsm.dataclass import dataclass

MAX_CONNECTIONS = 1024
"""Largest number of connections at once, however many descriptors there are."""

MAX_PROXIED = 512
"""Largest number of connections of all sessions' code through their proxies; each has two
descriptors.
"""

MAX_BOXES = 64
"""Largest number of boxes at once, however many descriptors there are."""

PER_BOX = 10
"""Descriptors of a box: its process, its two sockets and a copy of each to listen on, the socket of
its proxy, and four connections on which that may come. Its other connections count among those of
clients or of proxies.
"""

PER_SESSION = 2
"""Descriptors of a session: its agent's socket, and its PID 1."""

PER_OVERLAY = 2
"""Further descriptors of a session that may change a copy of its project."""

PER_PROXY = 4
"""Further descriptors of a session that reaches some hosts: the socket of its proxy, the channel of
its connections to names, the broker that reads from these, and the channel to that. Those of boxes'
brokers are among `MAX_LATER`.
"""

MAX_LATER = 256
"""Largest number of descriptors to keep free for what sessions may need later: proxies, if hosts
are allowed while a session lives, transfers of files, and open ports.
"""

PER_GRANT = 4
"""Further descriptors of a session with secrets: its helper, the channel to it, its state, and one
to spare while a helper is replaced. Those of boxes are among `MAX_LATER`.
"""

MAX_GRANTS = 64
"""Largest number of sessions and boxes with secrets, however many descriptors there are."""

PER_PORT = 4
"""Descriptors of an open port: its listening socket, and the relay's process, channel and counts,
which the ports of a session share.
"""

MAX_OPEN_PORTS = MAX_LATER // PER_PORT
"""Largest number of open ports of all sessions, however many descriptors there are."""

RESERVED = 192
"""Descriptors for sockets, epolls and logs of the supervisor itself, 20; templates, 4 each; jails
during their launch, up to 20 each; and connections that are refused because there are too many.
"""

LEAST = 8
"""Smallest number of sessions and connections to aim for: with fewer nsm is useless."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shares:
    """Shares of the descriptors: largest number for each use.

    Attributes:
        sessions: sessions, spares included, if each has only `PER_SESSION` descriptors.
    """

    limit: int
    sessions: int
    connections: int
    proxied: int
    boxes: int = MAX_BOXES
    ports: int = MAX_OPEN_PORTS
    grants: int = MAX_GRANTS


class Quota:
    """Limit of a number in use at once, shared by all its users.

    Args:
        whose: beginning of the sentence for a refusal: "The box has".

    Attributes:
        taken: present number, including those that are about to be refused.
    """

    def __init__(self, most: int, whose: str) -> None:
        self.most = most
        self.whose = whose
        self.taken = 0

    def __repr__(self) -> str:
        return f"<Quota {self.whose} {self.taken} of {self.most}>"


def draw(quotas: Sequence[Quota]) -> tuple[Sequence[Quota], Quota | None]:
    """Count one more in each quota, up to the first one that is full. Returns those in which it was
    counted, for the caller to count it down, and the full one.
    """
    for number, quota in enumerate(quotas, 1):
        quota.taken += 1
        if quota.taken > quota.most:
            return quotas[:number], quota
    return quotas, None


def share_out(limit: int, http: int = 0) -> Shares:
    """Divide a limit on descriptors."""
    room = limit - RESERVED - http
    connections = min(MAX_CONNECTIONS, max(LEAST, room // 8))
    proxied = min(MAX_PROXIED, max(LEAST, room // 32))
    boxes = min(MAX_BOXES, max(LEAST, room // 64))
    later = min(MAX_LATER, max(LEAST, room // 64))
    left = room - connections - 2 * proxied - PER_BOX * boxes - later
    sessions = max(LEAST, left // PER_SESSION)
    return Shares(
        limit=limit,
        sessions=sessions,
        connections=connections,
        proxied=proxied,
        boxes=boxes,
        ports=max(LEAST, later // PER_PORT),
        grants=min(MAX_GRANTS, max(LEAST, room // 64)),
    )


def raise_limit() -> int:
    """Raise the limit of descriptors as far as the system permits; returns the limit."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return hard
