"""Lines that clients can cause as often as they like: a few in full, then how many there were.

What is sent to a control socket costs its sender nothing, and each connection that is closed for it
costs the log a line: hundreds of kilobytes a second. Of each kind of line and each source there are
`FULL` in an interval; of the others every first, second, fourth, eighth, ... says how many it
stands for, and the first one of a later interval how many are missing in the one before. So nothing
waits for an interval's end, and lines of other kinds and about other clients come as before.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from nsmd.host import journald

FULL = 10
"""Of a kind, in each interval: enough to see what somebody does wrong."""

INTERVAL_S = 60.0

MAX_KINDS = 128
"""That are told apart: clients choose their names. More are of one kind for each line of code."""

LOGGERS = ("nsmd.control.connection", "nsmd.control.server", "nsmd.mcp.attachment")
"""Whose lines strangers can cause without having been let in, or before anything is known of them.
Others tell of what was done, and all of it."""

_Key = tuple[str, int, str, journald.About | None]


class _Kind:
    __slots__ = ("began_s", "left_out", "seen")

    def __init__(self, began_s: float) -> None:
        self.began_s = began_s
        self.seen = self.left_out = 0


class FloodFilter(logging.Filter):
    """Filter of repeated log lines: a few in full, then their number.

    Args:
        clock: seconds, from any beginning.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._clock = clock
        self._kinds: dict[_Key, _Kind] = {}

    def __repr__(self) -> str:
        return f"<FloodFilter {len(self._kinds)} kinds>"

    def filter(self, record: logging.LogRecord) -> bool:
        """Return whether to write the line, which may then stand for others."""
        now = self._clock()
        kind = self._kind(record, now)
        if now - kind.began_s >= INTERVAL_S:
            left_out, lasted_s = kind.left_out, now - kind.began_s
            kind.began_s, kind.seen, kind.left_out = now, 1, 0
            if left_out:
                _add(record, f"{left_out} more like it are left out in the {lasted_s:.0f} s before")
            return True
        kind.seen += 1
        if kind.seen <= FULL:
            return True
        kind.left_out += 1
        if kind.left_out & (kind.left_out - 1):
            return False
        seconds = now - kind.began_s
        _add(record, f"{kind.seen} like it in {seconds:.0f} s; most are left out from here on")
        return True

    def _kind(self, record: logging.LogRecord, now: float) -> _Kind:
        key: _Key = (record.name, record.lineno, str(record.msg), journald.current())
        kind = self._kinds.get(key)
        if kind is None and len(self._kinds) >= MAX_KINDS:
            for other, found in list(self._kinds.items()):
                if now - found.began_s >= INTERVAL_S:
                    del self._kinds[other]
            if len(self._kinds) >= MAX_KINDS:
                key = (record.name, record.lineno, "", None)
                kind = self._kinds.get(key)
        if kind is None:
            kind = self._kinds[key] = _Kind(now)
        return kind


def install() -> None:
    """Have the lines of `LOGGERS` bounded in this process."""
    flood = FloodFilter()
    for name in LOGGERS:
        logging.getLogger(name).addFilter(flood)


def _add(record: logging.LogRecord, text: str) -> None:
    record.msg, record.args = f"{record.getMessage()} ({text})", ()
