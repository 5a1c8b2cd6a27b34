"""Decisions on requests of code to the proxy, and refusals in the words of each protocol; pure."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from http import HTTPStatus
from typing import Literal, get_args

from nsm.dataclass import dataclass, field

Protocol = Literal["connect", "http", "socks5", "tcp"]

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
    "upstream",
    "busy",
]
"""Decision on a request: it was allowed; the network is off; its host is not in the list, or not on
that port; its name leads to a private address that is not named; it was no request for a host; it
had the stand-in of a secret where that is worth nothing; nobody knows the name; nobody answers at
the address; the upstream proxy does not lead there; there was no room.
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
    """One request, the `number`th of its session (from 1), at a time on trio's clock.

    With `bad-request`, the port is 0, and the host unknown. The port is also 0 where a name was
    looked up. Without a connection, there is no `address`. The host is printable.
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
        """True if a rule refused it, or a program that knows no proxy saw nothing but a reset."""
        reset = self.protocol == "tcp" and self.port and self.verdict != "allowed"
        return bool(reset) or self.verdict in REFUSED


@dataclass(slots=True)
class Counters:
    """Counts of requests, and of bytes from code to the world and back."""

    verdicts: dict[Verdict, int] = field(default_factory=lambda: dict.fromkeys(VERDICTS, 0))
    sent_bytes: int = 0
    received_bytes: int = 0

    def as_dict(self) -> dict[str, int]:
        """Values for the control socket, without zeroes."""
        told: dict[str, int] = {name: count for name, count in self.verdicts.items() if count}
        return {**told, "sent_bytes": self.sent_bytes, "received_bytes": self.received_bytes}


class DecisionLog:
    """The latest decisions of one session; it has `made` so many so far."""

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


class RefusedError(Exception):
    """A request is refused; `detail` is a sentence for people and models, who read it."""

    def __init__(self, verdict: Verdict, detail: str) -> None:
        super().__init__(detail)
        self.verdict: Verdict = verdict
        self.detail = detail


_STATUS: Mapping[Verdict, tuple[HTTPStatus, str, str]] = {
    "off": (HTTPStatus.FORBIDDEN, "Network is off (nsm)", "http_request_denied"),
    "not-allowed": (HTTPStatus.FORBIDDEN, "Host not allowed (nsm)", "http_request_denied"),
    "port": (HTTPStatus.FORBIDDEN, "Port not allowed (nsm)", "http_request_denied"),
    "address": (HTTPStatus.FORBIDDEN, "Address not allowed (nsm)", "destination_ip_prohibited"),
    "bad-request": (HTTPStatus.BAD_REQUEST, "Bad request to proxy (nsm)", "http_request_error"),
    "secret": (HTTPStatus.FORBIDDEN, "Secret not allowed (nsm)", "http_request_denied"),
    "unresolved": (HTTPStatus.BAD_GATEWAY, "No such host (nsm)", "dns_error"),
    "unreachable": (HTTPStatus.BAD_GATEWAY, "Host does not answer (nsm)", "connection_refused"),
    "upstream": (HTTPStatus.BAD_GATEWAY, "Upstream proxy failed (nsm)", "proxy_internal_error"),
    "busy": (
        HTTPStatus.SERVICE_UNAVAILABLE,
        "Too many connections (nsm)",
        "connection_limit_reached",
    ),
}
"""Status and reason, which is all that many clients show, and the error type of RFC 9209."""

_SOCKS: Mapping[Verdict, int] = {
    "off": 2,
    "not-allowed": 2,
    "port": 2,
    "address": 2,
    "bad-request": 1,
    "secret": 2,
    "unresolved": 4,
    "unreachable": 5,
    "upstream": 5,
    "busy": 1,
}
"""Codes of RFC 1928, section 6."""


def http_response(refused: RefusedError) -> bytes:
    """Make the answer for an HTTP client."""
    status, reason, kind = _STATUS[refused.verdict]
    body = f"{refused.detail}\n".encode()
    head = (
        f"HTTP/1.1 {status.value} {reason}\r\n"
        f"Proxy-Status: nsm; error={kind}\r\n"
        "Content-Type: text/plain; charset=utf-8\r\n"
        f"Content-Length: {len(body)}\r\n"
        "Connection: close\r\n"
        "\r\n"
    )
    return head.encode() + body


def socks_code(refused: RefusedError) -> int:
    """Return the code for a SOCKS client."""
    return _SOCKS[refused.verdict]
