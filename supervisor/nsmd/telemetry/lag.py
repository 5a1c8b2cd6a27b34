"""How long the event loop is kept from what is waiting.

Looked at for a few passes at a time, when something happens and the last look was a while ago: to
look at each pass would take a hundredth of a call, and a task that wakes up to see how late it is
would keep an idle supervisor from sleeping.
"""

from __future__ import annotations

from time import perf_counter

import trio

from nsmd.telemetry.histogram import Histogram

PAUSE_S = 0.1
"""Between two looks."""

PASSES = 4
"""In a look: what a client asks for is often done in a later pass than the one that reads it."""


class LoopLag(trio.abc.Instrument):
    """An instrument of the event loop, while it looks.

    Attributes:
        busy: passes, each from the moment when the loop woke up, or the look began, to its next
            look at what happened.
        due_s: the next look is not to begin before that, on trio's clock.
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
            now_s: on trio's clock, at least `due_s`.
        """
        self.due_s = now_s + PAUSE_S
        if not self._left:
            trio.lowlevel.add_instrument(self)
            self._woke_s = perf_counter()
        self._left = PASSES

    def after_io_wait(self, timeout: float) -> None:  # noqa: ARG002 (trio's)
        """The loop has seen what happened."""
        self._woke_s = perf_counter()

    def before_io_wait(self, timeout: float) -> None:  # noqa: ARG002 (trio's)
        """The loop has done what there was to do."""
        self.busy.add(perf_counter() - self._woke_s)
        self._left -= 1
        if not self._left:
            trio.lowlevel.remove_instrument(self)
