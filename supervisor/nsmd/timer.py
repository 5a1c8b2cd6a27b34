"""One timer that is set anew for every execution, without a task for each setting."""

from __future__ import annotations

import math
from collections.abc import Callable

import trio


class Timer:
    """Calls a function once, some time after it was last armed.

    Arming moves a deadline, which costs microseconds; starting and cancelling a task for each
    execution cost a tenth of a call. `run` is the timer's one task.
    """

    def __init__(self) -> None:
        self._deadline = math.inf
        self._scope: trio.CancelScope | None = None
        self._function: Callable[[], None] | None = None

    @property
    def armed(self) -> bool:
        """Whether a call is due."""
        return self._function is not None

    def arm(self, seconds: float, function: Callable[[], None]) -> None:
        """Call `function` in `seconds`, instead of whatever was due."""
        self._function = function
        self._set(trio.current_time() + seconds)

    def disarm(self) -> None:
        """Call nothing."""
        self._function = None
        self._set(math.inf)

    async def run(self) -> None:
        """Wait and call, until cancelled."""
        while True:
            with trio.CancelScope(deadline=self._deadline) as self._scope:
                await trio.sleep_forever()
            # Disarmed or armed anew since the deadline passed: not due.
            if self._function is not None and trio.current_time() >= self._deadline:
                function, self._function = self._function, None
                self._deadline = math.inf
                function()

    def _set(self, deadline: float) -> None:
        self._deadline = deadline
        if self._scope is not None:
            self._scope.deadline = deadline
