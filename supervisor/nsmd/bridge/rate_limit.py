"""Limit of the rate at which calls of one client are recorded.

Nothing is deleted from the audit, and an agent must not fill the disk. A client that is too fast
waits for its answers; nobody else does.
"""

from __future__ import annotations

from collections import OrderedDict

import trio

BURST_BYTES = 8 * 1024 * 1024
BYTES_PER_S = 64 * 1024
"""Rate for calls that start something: several programs a second with long arguments stay below."""

PACE_S = 2.0
"""Longest wait of such a call. Calls that would wait longer are refused and counted: one line has
their number, as soon as there is room for it.
"""

REFUSED_BURST_BYTES = 1024 * 1024
REFUSED_BYTES_PER_S = 2 * 1024
"""Rate for refused calls: thousands at once, and then half a dozen a second for ever, 170 MiB a
day.
"""

REFUSED_S = 30.0
"""Longest wait of such a call. As many calls as one client may have at once wait less, except with
the longest lines: then they are counted, too.
"""

MAX_SCOPES = 256
"""Largest number of clients whose rate is known, the latest ones."""


class RateLimits:
    """Rate limits of all clients."""

    def __init__(self) -> None:
        self._scopes: OrderedDict[str, ScopeRateLimit] = OrderedDict()
        self._released = trio.Event()

    def of(self, scope: str) -> ScopeRateLimit:
        """Return the limits of one client."""
        rate_limit = self._scopes.get(scope)
        if rate_limit is None:
            rate_limit = self._scopes[scope] = ScopeRateLimit(self._released)
        self._scopes.move_to_end(scope)
        if len(self._scopes) > MAX_SCOPES:
            self._scopes.popitem(last=False)
        return rate_limit

    def release(self) -> None:
        """End all waits: these are the last lines."""
        self._released.set()


class ScopeRateLimit:
    """Rate limits of one client.

    Attributes:
        starts: limit of calls that start something.
        refusals: limit of other calls.
        unwritten: number of calls that were refused for the limit, without a line.
    """

    def __init__(self, released: trio.Event) -> None:
        self.starts = RateLimit(BURST_BYTES, BYTES_PER_S, released)
        self.refusals = RateLimit(REFUSED_BURST_BYTES, REFUSED_BYTES_PER_S, released)
        self.unwritten = 0


class RateLimit:
    """A token bucket of bytes; waiting calls continue in order of arrival.

    Args:
        burst: bytes at once.
        per_s: bytes per second, in the long run.
        released: ends all waits once it is set.
    """

    __slots__ = ("_burst", "_bytes", "_filled_s", "_per_s", "_released")

    def __init__(self, burst: int, per_s: int, released: trio.Event) -> None:
        self._burst = self._bytes = float(burst)
        self._per_s = per_s
        self._filled_s = trio.current_time()
        self._released = released

    def __repr__(self) -> str:
        return f"<RateLimit {self._bytes:.0f} of {self._burst:.0f}>"

    def wait_s(self, size: int) -> float:
        """Seconds that so many more bytes have to wait."""
        if self._released.is_set():
            return 0.0
        now_s = trio.current_time()
        filled = self._bytes + (now_s - self._filled_s) * self._per_s
        self._bytes, self._filled_s = min(filled, self._burst), now_s
        return max(0.0, (size - self._bytes) / self._per_s)

    async def taken(self, size: int) -> None:
        """Wait until so many bytes may be added."""
        wait_s = self.wait_s(size)
        self._bytes -= size
        if wait_s:
            try:
                with trio.move_on_after(wait_s):
                    await self._released.wait()
            except trio.Cancelled:
                self._bytes += size
                raise
