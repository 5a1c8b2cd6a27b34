"""Finished calls, for clients that lost the connection before they had the answer."""

from __future__ import annotations

import sys
from collections import OrderedDict

from nsm.dataclass import replace
from nsmd.bridge.call_handle import ProgramCall
from nsmd.bridge.values import ProgramEnd

MAX_KEPT = 64
"""Largest number of answers that clients may ask for again."""

MAX_KEPT_BYTES = 64 * 1024 * 1024
"""Largest size of their output. The last one is kept at any size: `[mcp] max_result_chars` allows
80 MB in a single one, and a client asks again at once.
"""

Key = tuple[str, str]
"""Scope of a client, and id of the call."""


class FinishedCalls:
    """The last finished calls; the oldest are dropped.

    Calls that started nothing are dropped first: a client that floods these does not displace
    others, and if it asks for them again, they are refused again, with nothing started.
    """

    def __init__(self) -> None:
        self._calls: OrderedDict[Key, ProgramCall] = OrderedDict()
        self._sizes: dict[Key, int] = {}
        self._bytes = 0

    def __repr__(self) -> str:
        return f"<FinishedCalls {len(self._calls)} calls, {self._bytes} bytes>"

    def get(self, key: Key) -> ProgramCall | None:
        """Return the call of that key, if it is still there."""
        return self._calls.get(key)

    def add(self, key: Key, call: ProgramCall) -> None:
        """Keep a call that has its answer."""
        # The arguments are in the ledger, and may be megabytes each.
        call.asked = replace(call.asked, arguments=())
        self._drop(key)
        self._calls[key] = call
        self._sizes[key] = size = _size_of(call)
        self._bytes += size
        while len(self._calls) > 1 and len(self._calls) > MAX_KEPT:
            self._drop(self._least(key))
        while len(self._calls) > 1 and self._bytes > MAX_KEPT_BYTES:
            self._drop(next(iter(self._calls)))

    def _least(self, newest: Key) -> Key:
        refused = (key for key, call in self._calls.items() if not call.started and key != newest)
        return next(refused, next(iter(self._calls)))

    def _drop(self, key: Key) -> None:
        if self._calls.pop(key, None) is not None:
            self._bytes -= self._sizes.pop(key)


def _size_of(call: ProgramCall) -> int:
    """Memory of a call's output: Python uses up to four bytes for a character."""
    if not isinstance(call.answer, ProgramEnd):
        return 0
    return sys.getsizeof(call.answer.stdout) + sys.getsizeof(call.answer.stderr)
