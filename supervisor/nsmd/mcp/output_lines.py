"""Lines of a running program as progress notifications, one for each line.

A flood costs the client little: it gets at most `BURST` in `BURST_S`, and of faster output the
newest lines, with the number of those left out. Clients give up silent calls, so there is a
notification at least every `nsmd.mcp.progress.MAX_SILENCE_S`.
"""

from __future__ import annotations

from collections import deque

import trio

from nsmd.mcp.progress import MAX_SILENCE_S, Report
from nsmd.mcp.text import clean, settled
from nsmd.model.values import StreamName

BURST = 10
BURST_S = 0.1

MAX_WAITING = 512
"""Largest number of waiting lines; beyond that, the oldest is left out. The result has them."""

STDERR_MARK = "[stderr] "
"""Prefix of a line of stderr. A line of stdout is unchanged."""

_MIN_STEP_S = 0.001
"""Smallest difference between the times of two notifications: the specification demands that
`progress` grows, and its value is rounded to this.
"""


class LineFeed:
    """Accepts lines at any speed and reports them at a bounded one.

    Args:
        began_before_s: seconds that the call has been under way; an earlier supervisor may have
            reported them.
    """

    def __init__(self, began_before_s: float = 0.0) -> None:
        self._before_s = began_before_s
        self._waiting: deque[str] = deque()
        self._skipped = 0
        self._woken = trio.Event()
        self._ended = trio.Event()
        self._started_s = 0.0
        self._told_s = 0.0

    def take(self, stream: StreamName, line: str) -> None:
        """Note a line; never blocks (an `nsmd.bridge.programs.OnLine`)."""
        if len(self._waiting) >= MAX_WAITING:
            self._waiting.popleft()
            self._skipped += 1
        self._waiting.append(f"{STDERR_MARK}{line}" if stream == "stderr" else line)
        self._woken.set()

    def end(self) -> None:
        """Note the end: waiting lines are reported at once, and `run` returns."""
        self._ended.set()
        self._woken.set()

    async def run(self, report: Report) -> None:
        """Report until the end.

        Cancellation: lines that were not reported yet are dropped; the result has them.
        """
        last = trio.current_time()
        self._started_s = last - self._before_s
        while self._waiting or not self._ended.is_set():
            with trio.move_on_at(last + MAX_SILENCE_S):
                await self._woken.wait()
            last = trio.current_time()
            if self._woken.is_set():
                await self._tell_some(report)
            else:
                await self._tell(report, f"running for {last - self._started_s:.0f} s")
            with trio.move_on_at(last + BURST_S):
                await self._ended.wait()

    async def _tell_some(self, report: Report) -> None:
        for _ in range(BURST):
            if self._skipped:
                skipped, self._skipped = self._skipped, 0
                await self._tell(report, f"[... {skipped:,} lines left out ...]")
            if not self._waiting:
                break
            await self._tell(report, self._waiting.popleft())
        if not self._waiting and not self._ended.is_set():
            self._woken = trio.Event()

    async def _tell(self, report: Report, text: str) -> None:
        elapsed = round(trio.current_time() - self._started_s, 3)
        self._told_s = max(elapsed, round(self._told_s + _MIN_STEP_S, 3))
        await report(self._told_s, settled(clean(text)))
