"""Output on its way to one client, bounded however slow the client is."""

from __future__ import annotations

from collections import deque

import trio

from nsmd.values import Output

MAX_PENDING_CHARS = 1024 * 1024
"""Text that waits for one client. What comes beyond is left out of the stream (not of the result),
and the next piece says how much."""


class OutputStream:
    """A sink for an execution and a source for the task that sends it on."""

    def __init__(self) -> None:
        self._pending: deque[Output] = deque()
        self._chars = 0
        self._skipped = 0
        self._wake = trio.Event()
        self._closed = False

    def put(self, output: Output) -> None:
        """Take a piece of output; never blocks."""
        if self._chars + len(output.text) > MAX_PENDING_CHARS:
            self._skipped += len(output.text)
            return
        self._chars += len(output.text)
        self._pending.append(output)
        self._wake.set()

    def close(self) -> None:
        """No more comes."""
        self._closed = True
        self._wake.set()

    async def get(self) -> tuple[Output, int] | None:
        """The next piece and the characters left out before it; None at the end."""
        while not self._pending:
            if self._closed:
                return None
            self._wake = trio.Event()
            await self._wake.wait()
        output = self._pending.popleft()
        self._chars -= len(output.text)
        skipped, self._skipped = self._skipped, 0
        return output, skipped
