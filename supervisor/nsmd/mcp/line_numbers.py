"""Numbers of a shim's lines, by which requests are known to one supervisor after the other.

Ids of JSON-RPC are the client's, and clients exist that use one twice. So the shim numbers what it
sends, and what it sends again after its supervisor ended has the number that it had then:

    17 {"jsonrpc": "2.0", "id": 3, ...}          the first time
    17+2.250 {"jsonrpc": "2.0", "id": 3, ...}    again, 2.25 s after the first time

A line without is a notification, an answer, or nothing that is sent twice.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

_NUMBERED = re.compile(rb"(\d{1,15})(?:\+(\d{1,9}\.\d{3}))? ")


@dataclass(frozen=True, slots=True)
class Number:
    """Number of a line.

    Attributes:
        execution_id: of code that it asks to be run.
        again_s: how long ago it was sent first, if it was sent before.
    """

    execution_id: str
    again_s: float | None = None


def split(line: bytes, attachment_id: str) -> tuple[Number | None, bytes]:
    """The number of a line, if it has one, and the rest."""
    found = _NUMBERED.match(line)
    if found is None:
        return None, line
    number, again = found.groups()
    execution_id = f"{attachment_id}-{int(number)}"
    again_s = None if again is None else float(again)
    return Number(execution_id, again_s), line[found.end() :]
