"""Rate at which one client's requests are read.

A client that floods is not refused: nothing more is read from it for a while, so that its socket
fills and it waits. Other clients are served meanwhile.
"""

from __future__ import annotations

import trio

MESSAGES_PER_S = 10_000.0
"""Several times the rate of a client that waits for answers; a flood of the cheapest requests stays
below half a processor.
"""

BURST = 2_000
"""Messages at once, at any rate: calls that a client has saved up."""

TURN = 64
"""Messages of one client in one turn of the event loop."""


class ReadRate:
    """A token bucket. While there are tokens, a message costs one subtraction."""

    __slots__ = ("_burst", "_filled_s", "_per_s", "_tokens")

    def __init__(self, per_s: float = MESSAGES_PER_S, burst: int = BURST) -> None:
        self._per_s = per_s
        self._burst = self._tokens = float(burst)
        self._filled_s = trio.current_time()

    def __repr__(self) -> str:
        return f"<ReadRate {self._tokens:.0f} of {self._burst:.0f}>"

    async def taken(self, messages: int) -> None:
        """Wait until so many messages may be taken."""
        self._tokens -= messages
        if self._tokens > 0:
            return
        now = trio.current_time()
        self._tokens = min(self._tokens + (now - self._filled_s) * self._per_s, self._burst)
        self._filled_s = now
        if self._tokens < 0:
            await trio.sleep(-self._tokens / self._per_s)
