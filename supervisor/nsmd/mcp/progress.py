"""Output of a running call as progress notifications.

There are at most ten a second, so that a flood costs the client little, and at least one every 15
s, because clients give up silent calls.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import trio

from nsmd.mcp.text import clean, settled
from nsmd.model.values import Output

MIN_INTERVAL_S = 0.1
MAX_SILENCE_S = 15.0
MAX_MESSAGE_CHARS = 8192
"""Largest output in one notification. Faster output is skipped: the result has all of it."""

Report = Callable[[float, str], Awaitable[None]]
"""Sends one notification: seconds since the start, and the text."""


class ProgressFeed:
    """Accepts output at any speed and reports it at a bounded one.

    The newest `MAX_MESSAGE_CHARS` wait to be reported; older ones are dropped and counted.

    Args:
        began_before_s: seconds that the call has been under way; an earlier supervisor may have
            reported them.
    """

    def __init__(self, began_before_s: float = 0.0) -> None:
        self._before_s = began_before_s
        self._pieces: list[str] = []
        self._chars = 0
        self._skipped = 0
        self._arrived = trio.Event()
        self._started_s: float | None = None

    def take(self, output: Output) -> None:
        """Note a piece of output; never blocks (an `nsmd.model.values.OutputSink`)."""
        if not output.text:
            return
        self._pieces.append(output.text)
        self._chars += len(output.text)
        # twice the size, so that each character is copied once
        if self._chars > 2 * MAX_MESSAGE_CHARS:
            self._trim()
        self._arrived.set()

    async def run(self, report: Report) -> None:
        """Report until cancelled; it may be run again.

        Cancellation: output that was not reported yet is dropped; the result has it.
        """
        last = trio.current_time()
        started = self._started_s = self._started_s or last - self._before_s
        while True:
            with trio.move_on_at(last + MAX_SILENCE_S):
                await self._arrived.wait()
            last = trio.current_time()
            # The specification demands that `progress` grows from one notification to the next.
            # Time does, since at least `MIN_INTERVAL_S` is between two.
            await report(round(last - started, 3), self._next_message(last - started))
            await trio.sleep_until(last + MIN_INTERVAL_S)

    def _next_message(self, elapsed: float) -> str:
        if not self._pieces:
            return f"running for {elapsed:.0f} s"
        self._trim()
        text = settled(clean("".join(self._pieces)))
        if self._skipped:
            text = f"[... {self._skipped:,} characters skipped ...]\n{text}"
        self._pieces, self._chars, self._skipped = [], 0, 0
        self._arrived = trio.Event()
        return text

    def _trim(self) -> None:
        text = "".join(self._pieces)
        excess = max(0, len(text) - MAX_MESSAGE_CHARS)
        self._pieces = [text[excess:]]
        self._chars = len(self._pieces[0])
        self._skipped += excess
