"""Functions that block, in threads, where no further thread can be started, or a disk may hang.

trio starts threads when they are needed and ends idle ones. While a user has as many processes as
allowed (ulimit -u), starting one fails with a RuntimeError, which no caller expects: it would end
the supervisor. So one thread is there from the beginning.

Files of a network's file system, or of one that a program serves, may hang. Their reader, for whom
the whole supervisor waits, waits a moment at most.
"""

from __future__ import annotations

import errno
import queue
import threading
from collections.abc import Callable, Hashable
from contextlib import suppress
from typing import TYPE_CHECKING, Any, TypeVar

import outcome
import trio

if TYPE_CHECKING:
    from outcome import Outcome


class ReserveThread:
    """Thread that is there from the beginning, for functions for which none can be started.

    They run in it one after another. All others run as by `trio.to_thread.run_sync`.
    """

    def __init__(self, run_sync: Callable[..., Any]) -> None:
        self._run_sync = run_sync
        self._jobs: queue.SimpleQueue[Callable[[], object]] = queue.SimpleQueue()
        threading.Thread(target=self._work, name="reserve", daemon=True).start()

    def _work(self) -> None:
        while True:
            self._jobs.get()()

    async def run_sync(
        self,
        function: Callable[..., Any],
        *args: Any,
        abandon_on_cancel: bool = False,
        **options: Any,
    ) -> Any:
        """Run a function that blocks in a thread, as `trio.to_thread.run_sync` does."""
        begun = False

        def run() -> Any:
            nonlocal begun
            begun = True
            return function(*args)

        try:
            return await self._run_sync(run, abandon_on_cancel=abandon_on_cancel, **options)
        except RuntimeError:
            if begun:
                raise
        return await self._run_in_reserve(run, abandon_on_cancel)

    async def _run_in_reserve(self, run: Callable[[], Any], abandon_on_cancel: bool) -> Any:
        task, token = trio.lowlevel.current_task(), trio.lowlevel.current_trio_token()
        abandoned = False

        def settle(result: outcome.Outcome[Any]) -> None:
            if not abandoned:
                trio.lowlevel.reschedule(task, result)

        def job() -> None:
            result = outcome.capture(run)
            with suppress(trio.RunFinishedError):  # nobody waits any more
                token.run_sync_soon(settle, result)

        def abort(_raise_cancel: object) -> trio.lowlevel.Abort:
            nonlocal abandoned
            abandoned = abandon_on_cancel
            return trio.lowlevel.Abort.SUCCEEDED if abandoned else trio.lowlevel.Abort.FAILED

        self._jobs.put(job)
        return await trio.lowlevel.wait_task_rescheduled(abort)


def keep_reserve_thread() -> None:
    """Give all users of `trio.to_thread.run_sync` a thread in reserve, trio's own among them.

    Raises `OSError`.
    """
    try:
        reserve = ReserveThread(trio.to_thread.run_sync)
    except RuntimeError as error:
        raise OSError(
            errno.EAGAIN, "no thread can be started; look at memory and processes (ulimit -u)"
        ) from error
    # trio has no setting for this. Its functions for processes and names look this one up as well.
    setattr(trio.to_thread, "run_sync", reserve.run_sync)  # noqa: B010  # mypy refuses assignments


T = TypeVar("T")

WAIT_S = 5.0
"""Longest time to wait for a read. It takes microseconds, and more where a machine is so busy that
the thread does not get its turn.
"""


class BoundedReads:
    """Reads that may hang. After one has hung, others of its key fail at once until it ends."""

    def __init__(self) -> None:
        self._under_way: set[Hashable] = set()

    def __repr__(self) -> str:
        return f"<BoundedReads, {len(self._under_way)} under way>"

    def read(self, key: Hashable, function: Callable[[], T]) -> T:
        """Call a function in a thread, and return its result.

        Args:
            function: it must change nothing, as nobody may wait for its end.
        """
        ended, results = threading.Event(), list["Outcome[T]"]()

        def deliver(result: Outcome[T]) -> None:
            results.append(result)
            self._under_way.discard(key)
            ended.set()

        if key not in self._under_way:
            self._under_way.add(key)
            try:
                trio.lowlevel.start_thread_soon(function, deliver)
            except RuntimeError:  # there can be no further thread
                self._under_way.discard(key)
                return function()
            if ended.wait(WAIT_S):
                return results[0].unwrap()
        raise TimeoutError(errno.ETIMEDOUT, "its disk does not answer")
