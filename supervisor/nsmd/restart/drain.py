"""Drain: nothing new begins, and what runs comes to its end; before maintenance, and on SIGTERM.

Executions that ran or waited when it began may finish until a deadline. Then they are interrupted,
so that their callers get an answer with the output so far. Sessions stay as they are. Code that
arrives meanwhile is refused before any of it runs (`Shutdown.refusal`). Files, logs and lists
continue to work.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import trio

from nsmd.bridge.calls import ProgramCall, who_runs
from nsmd.fdstore.store import DescriptorStore
from nsmd.model.events import Events, SupervisorEvent
from nsmd.model.lifecycle import How, Shutdown

log = logging.getLogger(__name__)

INTERRUPTED_S = 3.0
"""Time for interrupted code to answer before the supervisor ends, in addition to an interpreter's
`interrupt_grace_seconds`.
"""

ANSWERS_S = 0.1
"""Pause before connections are closed: the last answers pass a few tasks on the way to their
clients, which takes a millisecond or two.
"""


_FINISHED = ("execution_finished", "fresh_idle", "program_ended")


class UnfinishedWork(Protocol):
    """Code or a program that runs, or waits for its turn."""

    def interrupt(self) -> None:
        """Make it end soon."""


class Draining:
    """Owner of the drain; there is at most one at a time.

    Args:
        nursery: for the task that waits; cancelling it only ends the waiting.
    """

    def __init__(
        self,
        events: Events,
        unfinished: Callable[[], Sequence[UnfinishedWork]],
        ending: Shutdown,
        nursery: trio.Nursery,
        *,
        grace_s: float = 2.0,
    ) -> None:
        self._events = events
        self._unfinished = unfinished
        self._ending = ending
        self._nursery = nursery
        self._grace_s = grace_s
        self.drain: Drain | None = None

    def begin(self, why: str, *, timeout_s: float = math.inf, then: How | None = None) -> Drain:
        """Accept nothing new from now on. A drain that is under way gets the new deadline.

        Args:
            why: for people, after "the supervisor is being drained".
            timeout_s: seconds until running work is interrupted. With `leave` nothing is
                interrupted, since it continues without this process.
            then: how to end when nothing runs any more; None to stay.
        """
        if self.drain is not None and self.drain.active:
            self.drain.hurry(timeout_s, then)
            self._ending.then = self.drain.then
            return self.drain
        self._ending.draining, self._ending.then = why, then
        left = self._unfinished()
        drain = self.drain = Drain(left, timeout_s, then)
        log.info("draining (%s): %d executions are left", why, drain.left)
        if programs := [each for each in left if isinstance(each, ProgramCall)]:
            log.info("of these, %s", who_runs(programs))
        self._tell("begun", drain)
        self._nursery.start_soon(self._run, drain)
        return drain

    def remaining_s(self) -> float | None:
        """Seconds until the remaining work is interrupted; None without a deadline."""
        if self.drain is None or math.isinf(self.drain.due_s):
            return None
        return max(0.0, self.drain.due_s - trio.current_time())

    def cancel(self) -> bool:
        """Accept new work again; False if there was no drain, or if an end follows."""
        drain = self.drain
        if drain is None or not self._ending.draining or drain.then is not None:
            return False
        self.drain = None
        self._ending.draining = ""
        drain.take_back()
        log.info("no longer draining")
        self._tell("cancelled", drain)
        return True

    async def _run(self, drain: Drain) -> None:
        unsubscribe = self._events.subscribe(drain.happened)
        try:
            await self._wait(drain)
        finally:
            unsubscribe()
        if drain.cancelled:
            return
        log.info("drained: %d executions were interrupted", drain.interrupted)
        drain.is_over()
        self._tell("ended", drain)
        if drain.then is not None:
            await trio.sleep(ANSWERS_S)
            self._ending.ask(drain.then)

    async def _wait(self, drain: Drain) -> None:
        while drain.left and not drain.cancelled:
            change = drain.next_change
            with trio.move_on_at(drain.due_s) as scope:
                await change.wait()
            if not scope.cancelled_caught or drain.cancelled:
                continue
            if drain.then == "leave" or drain.interrupted:
                return
            drain.interrupt()
            # The session itself ends code that ignores an interrupt. An end of all sessions need
            # not wait so long, since it kills the rest.
            bounded = drain.then is not None
            drain.due_s = trio.current_time() + self._grace_s + INTERRUPTED_S
            drain.due_s = drain.due_s if bounded else math.inf

    def _tell(self, state: str, drain: Drain) -> None:
        self._events.publish(
            "draining",
            state=state,
            left=drain.left,
            interrupted=drain.interrupted,
            then=drain.then or "stay",
        )


class Drain:
    """One drain, from its beginning until nothing is left or it is cancelled.

    Attributes:
        due_s: time on trio's clock when the remaining work is interrupted.
        then: as in `Draining.begin`.
        interrupted: number of interrupted executions.
        next_change: set at the next change of anything here, and replaced.
    """

    def __init__(self, left: Sequence[UnfinishedWork], timeout_s: float, then: How | None) -> None:
        self._left = set(left)
        self.due_s = trio.current_time() + timeout_s
        self.then: How | None = then
        self.interrupted = 0
        self.cancelled = False
        self.next_change = trio.Event()
        self._over = False

    def __repr__(self) -> str:
        state = "cancelled" if self.cancelled else "over" if self._over else "active"
        return f"<Drain {state}, {self.left} left>"

    @property
    def active(self) -> bool:
        """True while it waits for something."""
        return not self._over and not self.cancelled

    @property
    def left(self) -> int:
        """Number of unfinished executions."""
        return len(self._left)

    def report(self) -> Mapping[str, Any]:
        """Report in plain values: `drained, left, interrupted, remaining_s` (None without a
        deadline).
        """
        left = self.due_s - trio.current_time()
        return {
            "drained": self._over,
            "left": self.left,
            "interrupted": self.interrupted,
            "remaining_s": None if math.isinf(left) or self._over else max(0.0, left),
        }

    def hurry(self, timeout_s: float, then: How | None) -> None:
        """Set another deadline, and perhaps an end that follows."""
        due_s = trio.current_time() + timeout_s
        self.due_s = min(self.due_s, due_s + INTERRUPTED_S) if self.interrupted else due_s
        if then is not None and (self.then is None or then == "end"):
            self.then = then
        self._changed()

    def interrupt(self) -> None:
        """Interrupt all that is left."""
        for execution in list(self._left):
            self.interrupted += 1
            if self.then is not None and isinstance(execution, ProgramCall):
                execution.stop.ask("shutdown")  # nobody has cancelled it
            else:
                execution.interrupt()
        self._changed()

    def happened(self, event: SupervisorEvent) -> None:
        """Take note of what finishes; for `Events.subscribe`."""
        if event.kind in _FINISHED and event.subject in self._left:
            self._left.discard(event.subject)
            self._changed()

    def take_back(self) -> None:
        """Cancel the drain."""
        self.cancelled = True
        self._changed()

    def is_over(self) -> None:
        """Note that nothing is left, or that all that is left continues elsewhere."""
        self._over = True
        self._changed()

    def _changed(self) -> None:
        self.next_change.set()
        self.next_change = trio.Event()


def after_sigterm(store: DescriptorStore) -> How:
    """Choose what follows a drain for SIGTERM.

    systemd gives all that it keeps to the next supervisor, and closes it if there will be none, so
    sessions are left to it. Our own holder only helps when nobody asked for an end.
    """
    return "leave" if store.kind == "systemd" else "end"
