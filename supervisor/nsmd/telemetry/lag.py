"""Measures how long the event loop keeps waiting events from being handled.

It looks at a few passes at a time, when something happens and the last look was a while ago.
Looking at each pass would cost a hundredth of a call, and a task that wakes up to see how late it
is would keep an idle supervisor awake.
"""

from __future__ import annotations

from time import perf_counter

import trio

from nsmd.telemetry.histogram import Histogram

PAUSE_S = 0.1
"""Time between two looks."""

PASSES = 4
"""Passes in a look: a request is often handled in a later pass than the one that reads it."""


class LoopLag(trio.abc.Instrument):
    """An instrument of the event loop, while it looks.

    Attributes:
        busy: durations of passes, each from the moment when the loop woke up, or the look began, to
            its next check for events.
        due_s: earliest time of the next look, on trio's clock.
    """

    def __init__(self) -> None:
        self.busy = Histogram()
        self.due_s = 0.0
        self._woke_s = 0.0
        self._left = 0

    def __repr__(self) -> str:
        return f"<LoopLag {self.busy!r}>"

    def look(self, now_s: float) -> None:
        """Begin a look, in a task of the loop.

        Args:
            now_s: time on trio's clock, at least `due_s`.
        """
        self.due_s = now_s + PAUSE_S
        if not self._left:
            trio.lowlevel.add_instrument(self)
            self._woke_s = perf_counter()
        self._left = PASSES

    def after_io_wait(self, timeout: float) -> None:  # noqa: ARG002 (trio's)
        """The loop has got its events."""
        self._woke_s = perf_counter()

    def before_io_wait(self, timeout: float) -> None:  # noqa: ARG002 (trio's)
        """The loop has handled its events."""
        self.busy.add(perf_counter() - self._woke_s)
        self._left -= 1
        if not self._left:
            trio.lowlevel.remove_instrument(self)
