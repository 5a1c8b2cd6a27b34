"""End of a supervisor after a fault of its own code: sessions outlive it, as they do a kill -9."""

from __future__ import annotations

from collections.abc import Callable
from typing import NoReturn

import trio

from nsmd.model.shutdown import Shutdown


class CrashWatch:
    """Watch that ends the process at once if one of its tasks fails, unless all is to end anyway.

    Otherwise trio would cancel all other tasks, and those of sessions, templates, boxes and ports
    would end what they own, instead of leaving it to the next supervisor.

    Args:
        ending: says how the supervisor is to end.
        crash: ends the process.
    """

    def __init__(self, ending: Shutdown, crash: Callable[[BaseException], NoReturn]) -> None:
        self._ending, self._crash = ending, crash
        self._tasks: set[trio.lowlevel.Task] = set()
        self._main: trio.lowlevel.Task | None = None
        self._over = False

    async def run(self, *, task_status: trio.TaskStatus[None]) -> None:
        """Watch one nursery of the supervisor's main task until `end`.

        When a nursery is cancelled, trio calls `abort` before it runs any of the tasks in it.
        """
        task = trio.lowlevel.current_task()
        nursery = task.parent_nursery
        assert nursery is not None, "never the first task"
        self._main = nursery.parent_task
        task_status.started()

        def abort(_raise_cancel: object) -> trio.lowlevel.Abort:
            self._tasks.discard(task)
            if not self._over and self._ending.how != "end":
                self._crash(self._cause())
            return trio.lowlevel.Abort.SUCCEEDED

        if not self._over:
            self._tasks.add(task)
            await trio.lowlevel.wait_task_rescheduled(abort)

    def end(self) -> None:
        """Stop watching: what is cancelled from now on is to end."""
        self._over = True
        for task in self._tasks:
            trio.lowlevel.reschedule(task)
        self._tasks.clear()

    def _cause(self) -> BaseException:
        """Return what has failed. trio tells it only afterwards, with all that fails meanwhile."""
        nurseries = self._main.child_nurseries if self._main is not None else ()
        found = [each for one in nurseries for each in getattr(one, "_pending_excs", ())]
        return BaseExceptionGroup("tasks failed", found) if found else RuntimeError("cancelled")
