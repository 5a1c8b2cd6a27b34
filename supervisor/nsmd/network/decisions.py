"""Requests of code to the proxy, and the decisions."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Literal, get_args

from nsm.dataclass import dataclass, field

Protocol = Literal["connect", "http", "socks5"]

Verdict = Literal[
    "allowed",
    "off",
    "not-allowed",
    "port",
    "address",
    "bad-request",
    "secret",
    "unresolved",
    "unreachable",
    "busy",
]
"""Decision on a request: it was allowed; the network is off; its host is not in the list, or not on
that port; its name leads to a private address that is not named; it was no request for a host; it
had the stand-in of a secret where that is worth nothing; nobody knows the name; nobody answers at
the address; there was no room.
"""

VERDICTS: tuple[Verdict, ...] = get_args(Verdict)

REFUSED: frozenset[Verdict] = frozenset(
    ("off", "not-allowed", "port", "address", "bad-request", "secret")
)
"""Verdicts of a rule; the others come from the present state of the network."""

MAX_KEPT = 256
"""Decisions that a session remembers; the oldest are dropped."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """One request.

    Attributes:
        number: 1, 2, 3, ... in its session.
        at_s: time on trio's clock.
        host: host as requested, printable; unknown with `bad-request`.
        port: 0 with `bad-request`.
        detail: reason, for people.
        address: address of the connection; empty if there was none.
    """

    number: int
    at_s: float
    protocol: Protocol
    host: str
    port: int
    verdict: Verdict
    detail: str = ""
    address: str = ""

    @property
    def refused(self) -> bool:
        """True if a rule refused it."""
        return self.verdict in REFUSED


@dataclass(slots=True)
class Counters:
    """Counts of requests and bytes.

    Attributes:
        verdicts: requests by verdict.
        sent_bytes: bytes from code to the world; `received_bytes` the other way round.
    """

    verdicts: dict[Verdict, int] = field(default_factory=lambda: dict.fromkeys(VERDICTS, 0))
    sent_bytes: int = 0
    received_bytes: int = 0

    def as_dict(self) -> dict[str, int]:
        """Values for the control socket, without zeroes."""
        told: dict[str, int] = {name: count for name, count in self.verdicts.items() if count}
        return {**told, "sent_bytes": self.sent_bytes, "received_bytes": self.received_bytes}


class DecisionLog:
    """The latest decisions of one session.

    Attributes:
        made: number of decisions so far.
    """

    __slots__ = ("_kept", "made")

    def __init__(self) -> None:
        self.made = 0
        self._kept: deque[Decision] = deque(maxlen=MAX_KEPT)

    def add(self, decision: Decision) -> None:
        """Add a decision."""
        self.made = decision.number
        self._kept.append(decision)

    def since(self, number: int) -> Sequence[Decision]:
        """Decisions after that number, as far as they are kept; oldest first."""
        if number >= self.made:
            return ()
        return [decision for decision in self._kept if decision.number > number]
