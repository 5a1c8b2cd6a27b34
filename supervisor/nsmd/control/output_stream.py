"""Output on its way to one client, bounded even if the client is slow."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping

import trio

from nsmd.model.values import Output, StreamName

MAX_PENDING_CHARS = 1024 * 1024
"""Largest size of text that waits for one client. Further output is left out of the stream (not of
the result), and the next piece of the same standard stream says how much.
"""

MAX_TOGETHER_CHARS = 16 * 1024 * 1024
"""The same for all executions of one client together: it may have started a thousand and read
nothing.
"""

_PIECE_CHARS = 200
"""Memory of a waiting piece beside its text: a flood of tiny pieces must not add up either."""


class Room:
    """Bound of the output that waits for one client, for all its executions together.

    Attributes:
        chars: size of the waiting output.
        answer_bytes: size of the answers of ended executions whose output has not all been sent.
    """

    __slots__ = ("answer_bytes", "chars")

    def __init__(self) -> None:
        self.chars = 0
        self.answer_bytes = 0


class OutputStream:
    """Sink for an execution, and source for the task that sends its output.

    Args:
        room: bound of the client.
    """

    def __init__(self, room: Room) -> None:
        self._room = room
        self._pending: deque[tuple[Output, int]] = deque()
        self._chars = 0
        self._skipped: dict[StreamName, int] = {}
        self._wake = trio.Event()
        self._closed = False

    def put(self, output: Output) -> None:
        """Take a piece of output; never blocks."""
        if not output.text:
            return
        size = len(output.text) + _PIECE_CHARS
        full = self._chars + size > MAX_PENDING_CHARS
        if full or self._room.chars + size > MAX_TOGETHER_CHARS:
            skipped = self._skipped.get(output.stream, 0)
            self._skipped[output.stream] = skipped + len(output.text)
            return
        self._count(size)
        self._pending.append((output, self._skipped.pop(output.stream, 0)))
        self._wake.set()

    def close(self) -> None:
        """Note the end of the output."""
        self._closed = True
        self._wake.set()

    async def get(self) -> tuple[Output, int] | None:
        """Return the next piece, and how many characters of its stream were left out before it;
        None at the end. A gap at the end is not reported: the result's text is longer than what was
        sent.
        """
        while not self._pending:
            if self._closed:
                return None
            self._wake = trio.Event()
            await self._wake.wait()
        output, skipped = self._pending.popleft()
        self._count(-len(output.text) - _PIECE_CHARS)
        return output, skipped

    def left_out(self) -> Mapping[StreamName, int]:
        """Number of characters left out after the last piece of each stream."""
        return self._skipped

    def discard(self) -> None:
        """Drop what is left: nobody takes it."""
        self._pending.clear()
        self._count(-self._chars)

    def _count(self, chars: int) -> None:
        self._chars += chars
        self._room.chars += chars
