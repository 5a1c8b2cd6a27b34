"""The piece of code that runs."""

from __future__ import annotations

import os
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from sandbox.capture import Preview
    from sandbox.interpreters.base import Interpreter
    from sandbox.interpreters.setup import SetupStep
    from sandbox.processes import Process

GRACE_S = 2.0
"""From the interrupt to the kill when the request does not say."""


class Execution:
    """The piece of code that runs now, and how far it is on the way to being stopped.

    Attributes:
        step: of a set-up, if it is one and nobody else's code.
    """

    def __init__(
        self,
        request_id: str | int,
        number: int,
        interpreter: Interpreter,
        grace_s: float,
        last_pid: int,
    ) -> None:
        self.id = request_id
        self.number = number
        self.interpreter = interpreter
        self.grace_s = grace_s
        self.preview: Preview | None = None
        self.step: SetupStep | None = None
        self.started = time.monotonic()
        self.started_ticks = int(time.clock_gettime(time.CLOCK_BOOTTIME) * os.sysconf("SC_CLK_TCK"))
        self._last_pid = last_pid
        self.timed_out = False
        self.interrupted = False

    @property
    def stopping(self) -> bool:
        return self.timed_out or self.interrupted

    def has_started(self, row: Process) -> bool:
        """Whether a process is this execution's, and not of an earlier one.

        A clock tick is long: the last execution may have started something within the same one.
        Pids grow, but for a wrap-around that would have to come in that very tick.
        """
        if row.started == self.started_ticks:
            return row.pid > self._last_pid
        return row.started > self.started_ticks
