"""Limit of log lines that clients can cause at will: a few in full, then their number.

Requests to a control socket cost their sender nothing, but each closed connection costs a line in
the log: hundreds of kilobytes a second. In an interval, each kind of line from each source appears
`FULL` times. Of further ones, the first, second, fourth, eighth, ... appears and says how many it
stands for; the first one of a later interval says how many are missing in the one before. So
nothing waits for an interval's end, and other kinds of lines and lines about other clients appear
as before.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from nsmd.host import journald

FULL = 10
"""Lines of a kind in each interval: enough to see the mistake."""

INTERVAL_S = 60.0

MAX_KINDS = 128
"""Largest number of kinds, since clients choose their names. Beyond that, all lines of one
statement are one kind.
"""

LOGGERS = ("nsmd.control.connection", "nsmd.control.server", "nsmd.mcp.attachment")
"""Loggers whose lines strangers can cause before they are let in, or before anything is known of
them. All lines of other loggers are written: they report what was done.
"""

_Key = tuple[str, int, str, journald.About | None]


class _Kind:
    __slots__ = ("began_s", "left_out", "seen")

    def __init__(self, began_s: float) -> None:
        self.began_s = began_s
        self.seen = self.left_out = 0


class FloodFilter(logging.Filter):
    """Filter of repeated log lines: a few in full, then their number.

    Args:
        clock: returns seconds from any beginning.
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
    """Limit the lines of `LOGGERS` in this process."""
    flood = FloodFilter()
    for name in LOGGERS:
        logging.getLogger(name).addFilter(flood)


def _add(record: logging.LogRecord, text: str) -> None:
    record.msg, record.args = f"{record.getMessage()} ({text})", ()
