"""How fast one client is listened to.

A client that floods is not refused: nothing more is read from it for a while, so that its socket
fills and it waits. The others are served meanwhile.
"""

from __future__ import annotations

import trio

MESSAGES_PER_S = 10_000.0
"""Several times what a client reaches that waits for answers; it keeps a flood of the cheapest
requests below half a processor."""

BURST = 2_000
"""Messages at once, whatever the rate: a herd of calls that a client has saved up."""

TURN = 64
"""Messages of one client that are taken in one turn of the event loop."""


class Pace:
    """A token bucket. What a message costs while there are tokens is one subtraction."""

    __slots__ = ("_filled_s", "_tokens")

    def __init__(self) -> None:
        self._tokens = float(BURST)
        self._filled_s = trio.current_time()

    def __repr__(self) -> str:
        return f"<Pace {self._tokens:.0f} of {BURST}>"

    async def taken(self, messages: int) -> None:
        """Wait until as many messages may have been taken."""
        self._tokens -= messages
        if self._tokens > 0:
            return
        now = trio.current_time()
        self._tokens = min(self._tokens + (now - self._filled_s) * MESSAGES_PER_S, float(BURST))
        self._filled_s = now
        if self._tokens < 0:
            await trio.sleep(-self._tokens / MESSAGES_PER_S)
