"""One timer that is set anew for every execution, at next to no cost."""

from __future__ import annotations

import math
from collections.abc import Callable

import trio


class Timer:
    """Calls a function once, some time after it was last armed.

    A task for each setting, or moving trio's deadline each time, takes a tenth of a call. So the
    task's own deadline is only ever moved forward in time; one that comes too early finds out when
    the call is really due, and sleeps on. `run` is the timer's one task.
    """

    def __init__(self) -> None:
        self._due_s = math.inf
        self._wakes_s = math.inf
        self._scope: trio.CancelScope | None = None
        self._function: Callable[[], None] | None = None

    def arm(self, seconds: float, function: Callable[[], None]) -> None:
        """Call `function` in `seconds`, instead of whatever was due."""
        self._function = function
        self._due_s = trio.current_time() + seconds
        if self._due_s < self._wakes_s:
            self._wakes_s = self._due_s
            if self._scope is not None:
                self._scope.deadline = self._due_s

    def disarm(self) -> None:
        """Call nothing."""
        self._function = None
        self._due_s = math.inf

    async def run(self) -> None:
        """Wait and call, until cancelled."""
        while True:
            self._wakes_s = self._due_s
            with trio.CancelScope(deadline=self._wakes_s) as self._scope:
                await trio.sleep_forever()
            if self._function is not None and trio.current_time() >= self._due_s:
                function = self._function
                self.disarm()
                function()
