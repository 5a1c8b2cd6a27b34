"""Requests of a client that have no answer yet, and how they are sent again.

Standard library only, and no `typing`: see `nsm.shim`.
"""

from __future__ import annotations

import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from nsm.shim.link import SupervisorConnection


class UnansweredRequest:
    """A request that has no answer yet.

    Attributes:
        end: the byte of the link's stream with which it ended.
        line: it; None where it must not be sent again.
        number: number of its line, by which the supervisor knows it.
        began_s: when it came, on the monotonic clock.
        losses: supervisors that ended meanwhile.
        sent_to: instances of the supervisors that it may have arrived at.
    """

    __slots__ = ("began_s", "end", "line", "losses", "method", "number", "sent_to")

    def __init__(self, method: str, end: int, line: bytes | None, number: int) -> None:
        self.method = method
        self.end = end
        self.line = line
        self.number = number
        self.began_s = time.monotonic()
        self.losses = 0
        self.sent_to: set[str] = set()


def marked(call: UnansweredRequest, link: SupervisorConnection, *, arrived: bool) -> bytes | None:
    """The line that sends a request to another supervisor than the first, which may have got it and
    have run its code (`arrived`); None if that supervisor could not tell a repeated request from a
    new one."""
    line = call.line
    if line is None:
        return None
    if not link.numbered:
        return None if arrived and call.method == "tools/call" else line
    if arrived and call.method == "tools/call":
        # A supervisor that is the only one it was sent to knows whether it ever arrived.
        known = call.sent_to == {link.instance} and link.instance
        sent_to = b"@" + link.instance.encode() if known else b""
        return b"%d+%.3f%b %b" % (call.number, time.monotonic() - call.began_s, sent_to, line)
    return b"%d %b" % (call.number, line)
