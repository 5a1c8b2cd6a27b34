"""Numbers of a shim's lines, by which the next supervisor recognizes requests.

Clients choose JSON-RPC ids, and some use one twice. So the shim numbers its lines, and a line that
it repeats after its supervisor ended has the same number:

    17 {"jsonrpc": "2.0", "id": 3, ...}          the first time
    17+2.250 {"jsonrpc": "2.0", "id": 3, ...}    again, 2.25 s after the first time

    17+2.250@5f3a {"jsonrpc": "2.0", ...}        and it was sent to no other supervisor

A line without a number is a notification, an answer, or a request that is never repeated.
"""

from __future__ import annotations

import re

from nsm.dataclass import dataclass

_NUMBERED = re.compile(rb"(\d{1,15})(?:\+(\d{1,9}\.\d{3})(?:@([0-9a-f]{1,32}))?)? ")


@dataclass(frozen=True, slots=True)
class Number:
    """Number of a line.

    Attributes:
        execution_id: id of the execution that it asks for.
        again_s: seconds since it was sent first, if it was sent before.
        sent_to: instance of the only supervisor that it was sent to; empty if that is not known.
    """

    execution_id: str
    again_s: float | None = None
    sent_to: str = ""


def split(line: bytes, attachment_id: str) -> tuple[Number | None, bytes]:
    """Split a line into its number, if it has one, and the rest."""
    found = _NUMBERED.match(line)
    if found is None:
        return None, line
    number, again, sent_to = found.groups()
    execution_id = f"{attachment_id}-{int(number)}"
    again_s = None if again is None else float(again)
    return Number(execution_id, again_s, (sent_to or b"").decode()), line[found.end() :]
