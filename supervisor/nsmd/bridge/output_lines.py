"""Output of a program as lines, and the limit of reported lines; pure, standard library only."""

from __future__ import annotations

import codecs
from collections import deque
from collections.abc import Sequence

PIECE_CHARS = 8192
"""A longer line is reported in pieces of exactly so many characters; a shorter piece
ends the line.
"""

MAX_WAITING_LINES = 20_000

MAX_WAITING_CHARS = 2 * 1024 * 1024
"""Largest size of lines that wait to be reported. Further lines are only counted: a program that
floods does not wait for readers, and the result has head and tail anyway.
"""

BATCH_LINES = 64
BATCH_CHARS = 32 * 1024
"""Largest report. With `INTERVAL_S`, that is 3,200 lines a second: more than anybody reads, and a
few hundredths of the event loop's time.
"""

INTERVAL_S = 0.02
"""Time between two reports while the program runs."""

Told = tuple[str, str | int]
"""Name of a stream with a line or a piece of one; or the number of lines that were left out."""


class OutputLines:
    """One stream, cut into lines."""

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._rest = ""

    def take(self, data: bytes) -> list[str]:
        """Return the lines and pieces that are complete with these bytes."""
        *lines, rest = (self._rest + self._decoder.decode(data)).split("\n")
        found: list[str] = []
        for line in lines:
            found += _pieces(line)
            found[-1] = found[-1].removesuffix("\r")
        *pieces, self._rest = _pieces(rest)
        return found + pieces

    def skip(self, data: bytes) -> int:
        """Take bytes whose lines are not reported. Returns their number."""
        before, newline, after = data.rpartition(b"\n")
        skipped = 0
        if newline:
            skipped = before.count(b"\n") + 1
            self._forget()
        if len(after) > 4 * PIECE_CHARS:  # not decoded: there may be gigabytes without any line
            self._forget()
            return skipped + 1
        self._rest += self._decoder.decode(after)
        if len(self._rest) >= PIECE_CHARS:
            self._forget()
            skipped += 1
        return skipped

    def end(self) -> list[str]:
        """Return the text after the last newline when the stream ends."""
        rest, self._rest = self._rest + self._decoder.decode(b"", final=True), ""
        return [piece for piece in _pieces(rest) if piece]

    def _forget(self) -> None:
        self._rest = ""
        self._decoder.reset()


def _pieces(line: str) -> list[str]:
    """Split a line into pieces; the last one is shorter, possibly empty."""
    whole = len(line) // PIECE_CHARS * PIECE_CHARS
    starts = range(0, whole, PIECE_CHARS)
    return [*(line[start : start + PIECE_CHARS] for start in starts), line[whole:]]


class Waiting:
    """Bounded queue of lines of all streams, in their order."""

    def __init__(self) -> None:
        self._told: deque[Told] = deque()
        self._chars = 0
        self._skipped: dict[str, int] = {}
        self._full = False

    def __bool__(self) -> bool:
        return bool(self._told or self._skipped)

    @property
    def has_room(self) -> bool:
        """True while lines are accepted. Once it was full, it accepts lines again only after half
        of them were reported, so that gaps are few.
        """
        share = 2 if self._full else 1
        self._full = (
            len(self._told) >= MAX_WAITING_LINES // share
            or self._chars >= MAX_WAITING_CHARS // share
        )
        return not self._full

    def add(self, stream: str, lines: Sequence[str]) -> None:
        """Add lines; the caller has checked `has_room`."""
        if lines and (skipped := self._skipped.pop(stream, 0)):
            self._told.append((stream, skipped))
        for line in lines:
            self._told.append((stream, line))
            self._chars += len(line)

    def leave_out(self, stream: str, count: int) -> None:
        """Count lines that are not reported."""
        if count:
            self._skipped[stream] = self._skipped.get(stream, 0) + count

    def batch(self) -> list[Told]:
        """Take as much as fits into one report; empty if nothing waits."""
        found: list[Told] = []
        chars = 0
        while self._told and len(found) < BATCH_LINES and chars < BATCH_CHARS:
            stream, line = self._told.popleft()
            found.append((stream, line))
            if isinstance(line, str):
                chars += len(line)
        self._chars -= chars
        if not self._told:
            found += self._skipped.items()
            self._skipped = {}
        return found
