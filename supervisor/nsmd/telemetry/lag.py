"""How long the event loop is kept from what is waiting.

Measured around each wait, which costs a microsecond where there is one anyway: a task that wakes up
to see how late it is would keep an idle supervisor from sleeping, and see what hangs by luck only.
"""

from __future__ import annotations

from bisect import bisect_left
from time import perf_counter

import trio

from nsmd.telemetry.histogram import BOUNDS, Histogram


class LoopLag(trio.abc.Instrument):
    """An instrument of the event loop.

    Attributes:
        busy: passes, from the moment when the loop woke up to its next look at what happened.
    """

    def __init__(self) -> None:
        self.busy = Histogram()
        self._woke_s = perf_counter()

    def __repr__(self) -> str:
        return f"<LoopLag {self.busy!r}>"

    def after_io_wait(self, timeout: float) -> None:  # noqa: ARG002 (trio's)
        """The loop has seen what happened."""
        self._woke_s = perf_counter()

    def before_io_wait(self, timeout: float) -> None:  # noqa: ARG002 (trio's)
        """The loop has done what there was to do."""
        busy_s = perf_counter() - self._woke_s
        busy = self.busy
        # As `Histogram.add`: a call passes here four times.
        busy.counts[bisect_left(BOUNDS, busy_s)] += 1
        busy.sum_s += busy_s
        if busy_s > busy.max_s:
            busy.max_s = busy_s
