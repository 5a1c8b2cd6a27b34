"""Output of a running execution so far: its beginning and its latest part, in order.

All readers share one record, and each has a position in it. A reader that falls too far behind gets
the number of characters that it missed.
"""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Iterator
from typing import NamedTuple

from nsm.dataclass import dataclass, field
from nsmd.model.values import StreamName

HEAD_CHARS = 128 * 1024
TAIL_CHARS = 384 * 1024
"""Room for the latest output of both streams. The agent sends at most 128 KiB every 50 ms, so a
reader may stall for most of a second without missing anything.
"""

_PIECE_CHARS = 200
"""Memory of a piece beside its text: a flood of tiny pieces must not add up either."""

_AGREEING_CHARS = 64
"""Characters at a stream's end that must agree with the final text, if the stream is whole."""

_GAP_END = " bytes left out ...]\n"
"""End of the line that the agent puts where it leaves output out; the final text does
not have it.
"""


class _Piece(NamedTuple):
    stream: StreamName
    offset: int
    text: str


@dataclass(slots=True)
class ReaderPosition:
    """Position of a reader."""

    next: int = 0
    seen: dict[StreamName, int] = field(default_factory=dict[StreamName, int])


class LiveOutput:
    """Output of a running execution."""

    def __init__(self) -> None:
        self._head: list[_Piece] = []
        self._tail: deque[_Piece] = deque()
        self._head_chars = 0
        self._tail_chars = 0
        self._given_up = 0
        self._chars: dict[StreamName, int] = {"stdout": 0, "stderr": 0}
        self._ends: dict[StreamName, str] = {"stdout": "", "stderr": ""}

    def __iter__(self) -> Iterator[tuple[StreamName, str, int]]:
        position = ReaderPosition()
        while (piece := self.read(position)) is not None:
            yield piece
        yield from self.missing(position)

    @property
    def size_bytes(self) -> int:
        """Approximate size in memory."""
        return sum(sys.getsizeof(p.text) + _PIECE_CHARS for p in (*self._head, *self._tail))

    def put(self, stream: StreamName, text: str) -> None:
        """Add printed output."""
        if not text:
            return
        end = (self._ends[stream] + text[-_AGREEING_CHARS:])[-_AGREEING_CHARS:]
        self._ends[stream] = end.rpartition(_GAP_END)[2]
        self._keep(stream, text)

    def complete(self, stream: StreamName, final: str) -> None:
        """Add what the stream still lacks of its final text.

        The agent leaves out the last piece when the supervisor lags behind, and an agent without
        streaming sends none at all.
        """
        end = self._ends[stream]
        if end and final.endswith(end):
            return
        found = final.rfind(end) if end else -1
        _, mark, tail = final.rpartition(_GAP_END)
        if found >= 0:
            rest = final[found + len(end) :]
        elif end and mark:  # it ended in the part that the final text (head and tail) leaves out
            rest = f"\n[... some output left out ...]\n{tail}"
        else:
            rest = final
        if rest:
            self._keep(stream, rest)

    def read(self, position: ReaderPosition) -> tuple[StreamName, str, int] | None:
        """Read the next piece for a reader; None while there is none.

        Returns:
            The stream, the text, and how many characters of that stream are missing before it.
        """
        if position.next < len(self._head):
            piece = self._head[position.next]
        else:
            position.next = max(position.next, len(self._head) + self._given_up)
            index = position.next - len(self._head) - self._given_up
            if index >= len(self._tail):
                return None
            piece = self._tail[index]
        position.next += 1
        missing = piece.offset - position.seen.get(piece.stream, 0)
        position.seen[piece.stream] = piece.offset + len(piece.text)
        return piece.stream, piece.text, missing

    def missing(self, position: ReaderPosition) -> Iterator[tuple[StreamName, str, int]]:
        """Gaps that no later piece reports, for a reader that has read everything."""
        for stream, chars in self._chars.items():
            if chars > position.seen.get(stream, 0):
                yield stream, "", chars - position.seen.get(stream, 0)

    def _keep(self, stream: StreamName, text: str) -> None:
        end = self._chars[stream] = self._chars[stream] + len(text)
        text = text[-(TAIL_CHARS - _PIECE_CHARS) :]
        piece = _Piece(stream, end - len(text), text)
        size = len(text) + _PIECE_CHARS
        if not self._tail and self._head_chars + size <= HEAD_CHARS:
            self._head_chars += size
            self._head.append(piece)
            return
        self._tail_chars += size
        self._tail.append(piece)
        while self._tail_chars > TAIL_CHARS:
            self._tail_chars -= len(self._tail.popleft().text) + _PIECE_CHARS
            self._given_up += 1
