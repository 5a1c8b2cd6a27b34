"""Messages of a broker about the connections of its clients; pure.

Each is a packet of words: what it is, the connection's number, and facts. The supervisor takes
nothing of them on trust: whoever has taken over a broker may send anything.
"""

from __future__ import annotations

from typing import Literal, get_args

from nsm.dataclass import dataclass
from nsmd.model.host_rules import BadHostError, Host, parse_authority
from nsmd.network.decisions import Protocol, Verdict

Kind = Literal["ask", "refused", "given", "done", "over", "moved"]
"""May I connect; I am refusing a request; the client's answer is sent, and it has sent these bytes
after its request; this request is done; the client's connection is; so many bytes were sent to
servers, and received.
"""

MAX_BYTES = 160 * 1024
"""Largest size of a message: one of the client's reads may follow a head of the largest size."""

MAX_DETAIL = 1000

_MAX_NUMBER = 2**53


class BrokerProtocolError(Exception):
    """A broker sends what ours does not."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerMessage:
    """A message about a connection of that number. Of a refusal there is a verdict with a detail,
    and the host may be empty; `moved` has bytes sent and received, `early` those of the client.
    """

    kind: Kind
    number: int = 0
    protocol: Protocol = "http"
    host: Host = ""
    port: int = 0
    verdict: Verdict = "bad-request"
    detail: str = ""
    moved: tuple[int, int] = (0, 0)
    early: bytes = b""


def parse_message(data: bytes) -> BrokerMessage:
    """Parse a message."""
    first, _, rest = data.partition(b" ")
    kind = next((each for each in get_args(Kind) if each.encode() == first), None)
    if kind is None or len(data) > MAX_BYTES:
        raise BrokerProtocolError("an unknown message")
    number, _, rest = rest.partition(b" ")
    about = BrokerMessage(kind=kind, number=_number(number))
    if kind == "given":
        return BrokerMessage(kind=kind, number=about.number, early=rest)
    try:
        words = rest.decode("ascii").split(" ", 3)
    except UnicodeDecodeError:
        raise BrokerProtocolError("bytes that are not ASCII") from None
    if kind == "moved" and len(words) == 2:
        moved = _number(words[0]), _number(words[1])
        return BrokerMessage(kind=kind, moved=moved)
    if kind in ("done", "over") and words == [""]:
        return about
    if kind in ("ask", "refused") and len(words) == (2 if kind == "ask" else 4):
        return _of_request(about, words)
    raise BrokerProtocolError("a message in another form")


def _of_request(about: BrokerMessage, words: list[str]) -> BrokerMessage:
    protocol = next((each for each in get_args(Protocol) if each == words[0]), None)
    verdict: Verdict | None = "bad-request"
    detail = ""
    if about.kind == "refused":
        verdict = next((each for each in ("bad-request", "secret") if each == words[2]), None)
        detail = words[3]
    try:
        none = about.kind == "refused" and words[1] == "-"
        host, port = ("", 0) if none else parse_authority(words[1])
    except BadHostError:
        protocol, host, port = None, "", 0
    if protocol is None or verdict is None or len(detail) > MAX_DETAIL or not detail.isprintable():
        raise BrokerProtocolError("an invalid request")
    return BrokerMessage(
        kind=about.kind,
        number=about.number,
        protocol=protocol,
        host=host,
        port=port,
        verdict=verdict,
        detail=detail,
    )


def _number(text: bytes | str) -> int:
    if not 0 < len(text) < 17 or not text.isdigit() or int(text) > _MAX_NUMBER:
        raise BrokerProtocolError("an invalid number")
    return int(text)
