"""Timers and descriptors of thousands of sessions, the clock of the supervisor's event loop, and
threads beside it for functions that block.

One task waits for all timers, and setting one again costs almost nothing. The clock stands still
while the supervisor is stopped, so that no deadline passes meanwhile.

In trio, each wait for a descriptor takes a turn of the scheduler and two system calls. A session
waits several times in its life, and most live for one execution only. Here a descriptor is
registered once, and all that can be read in a turn is read in that turn.

trio starts threads when they are needed and ends idle ones. While a user has as many processes as
allowed (ulimit -u), starting one fails with a RuntimeError, which no caller expects: it would end
the supervisor. So one thread is there from the beginning.

Files of a network's file system, or of one that a program serves, may hang. Their reader, for whom
the whole supervisor waits, waits a moment at most.
"""

from __future__ import annotations

import errno
import heapq
import itertools
import logging
import math
import queue
import select
import threading
import time
from collections.abc import Callable, Hashable
from contextlib import suppress
from typing import TYPE_CHECKING, Any, TypeVar

import outcome
import trio

if TYPE_CHECKING:
    from outcome import Outcome

log = logging.getLogger(__name__)


_WORTH_CLEARING = 64
"""Number of obsolete entries before the heap is searched for them."""

AHEAD_S = 10.0
"""Entries of timers that are not due within that time are removed with the first of them: otherwise
sessions that were busy together would each wake an idle supervisor once more.
"""


STEP_S = 2.0
"""Time between two looks at the clock before a deadline."""

WATCHED_S = 120.0
"""Seconds before each deadline in which the supervisor looks at the clock every `STEP_S`. Agents
watch theirs for less (`sandbox.polling.WATCHED_S`), by more than the time they get beyond a limit.
A supervisor with later deadlines sleeps.
"""

LATE_S = 1.0
"""If a look at the clock comes later than that, this process did not run meanwhile. It is less than
agents allow (`sandbox.polling.LATE_S`): a pause that counts for an agent counts for us.
"""

WORTH_TELLING_S = 10.0


class AwakeClock(trio.abc.Clock):
    """Clock that stands still while this process is stopped.

    All other processes are often stopped together with it: a frozen control group, `docker pause`,
    SIGSTOP. Time in which nobody could do anything must not count, so no deadline passes in it.
    (The kernel's monotonic clock stands still by itself while the machine is suspended.)
    """

    def __init__(self, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._monotonic = monotonic
        self._stopped_s = 0.0
        self._seen_s = self._due_s = 0.0
        self._watched = True

    def __repr__(self) -> str:
        return f"<AwakeClock, stopped for {self._stopped_s:.1f} s>"

    def start_clock(self) -> None:
        """Begin to count."""
        self._seen_s = self._monotonic()
        self._due_s = self._seen_s + LATE_S

    def current_time(self) -> float:
        """Seconds without those in which this process was stopped."""
        now_s = self._monotonic()
        if now_s > self._due_s:
            # Nobody knows how much of a step the others ran. Of a long sleep, only the end counts.
            missed_s = now_s - (self._seen_s if self._watched else self._due_s - LATE_S)
            self._stopped_s += missed_s
            self._watched = True
            if missed_s > WORTH_TELLING_S:
                log.warning("the supervisor was stopped for %.0f s, which do not count", missed_s)
        self._seen_s = now_s
        if now_s + LATE_S > self._due_s:
            self._due_s = now_s + LATE_S
        return now_s - self._stopped_s

    def deadline_to_sleep_time(self, deadline: float) -> float:
        """Seconds to sleep: until the deadline, or less to look at the clock before it."""
        left_s = deadline - self.current_time()
        self._watched = left_s <= WATCHED_S + STEP_S
        sleep_s = max(0.0, min(left_s, STEP_S) if self._watched else left_s - WATCHED_S)
        self._due_s = self._seen_s + sleep_s + LATE_S
        return sleep_s


class Timers:
    """The task that wakes up for timers.

    A task for each timer would take 4 KiB; moving trio's deadline with each setting would cost a
    tenth of a call. So a postponed timer keeps its place in the heap. When its entry comes up, it
    finds that it is not due, and gets a new entry. A timer that is always postponed in time wakes
    nobody.
    """

    def __init__(self) -> None:
        # `trio.current_time` takes three calls for this one.
        self.now = trio.lowlevel.current_clock().current_time
        self._heap: list[tuple[float, int, Timer]] = []
        self._numbers = itertools.count()  # orders entries with the same time
        self._obsolete = 0
        self._scope: trio.CancelScope | None = None

    def __repr__(self) -> str:
        return f"<Timers {len(self._heap)} entries, {self._obsolete} of them obsolete>"

    def __len__(self) -> int:
        return len(self._heap)

    async def run(self) -> None:
        """Wait and call, until cancelled."""
        while True:
            with trio.CancelScope(deadline=self._wakes_s) as self._scope:
                await trio.sleep_forever()
            now = trio.current_time()
            while self._wakes_s <= now + AHEAD_S:
                wakes_s, number, timer = self._heap[0]
                waited_for = timer.waits_for(number)
                if waited_for and wakes_s > now and timer.due_s <= wakes_s:
                    break
                heapq.heappop(self._heap)
                if waited_for:
                    timer.came_up(now)
                else:
                    self._obsolete -= 1

    @property
    def _wakes_s(self) -> float:
        return self._heap[0][0] if self._heap else math.inf

    # For timers.

    def wake(self, timer: Timer, wakes_s: float) -> int:
        """Call the timer's `came_up` at that time; returns the number of the entry."""
        if (not self._heap or wakes_s < self._heap[0][0]) and self._scope is not None:
            self._scope.deadline = wakes_s
        number = next(self._numbers)
        heapq.heappush(self._heap, (wakes_s, number, timer))
        return number

    def forget(self) -> None:
        """Note an obsolete entry. Without this it would stay until its time: a session's lifetime
        is a week.
        """
        self._obsolete += 1
        if self._obsolete > max(_WORTH_CLEARING, len(self._heap) // 2):
            self._heap = [entry for entry in self._heap if entry[2].waits_for(entry[1])]
            heapq.heapify(self._heap)
            self._obsolete = 0


class Timer:
    """Timer that calls a function once, some time after it was last armed.

    Args:
        function: must not raise.
    """

    __slots__ = ("_due_s", "_entry", "_function", "_timers", "_wakes_s")

    def __init__(self, timers: Timers, function: Callable[[], None]) -> None:
        self._timers = timers
        self._function: Callable[[], None] | None = function
        self._due_s = math.inf
        self._entry: int | None = None  # the valid one
        self._wakes_s = math.inf  # when that comes up

    def arm(self, seconds: float) -> None:
        """Call the function in `seconds`, and not at an earlier set time."""
        self._due_s = due_s = self._timers.now() + seconds
        if due_s < self._wakes_s:
            if self._entry is not None:
                self._drop_entry()
            self._wake(due_s)

    def disarm(self) -> None:
        """Call nothing."""
        self._due_s = math.inf

    def close(self) -> None:
        """Never call anything again, and release everything."""
        self._due_s = math.inf
        self._function = None
        if self._entry is not None:
            self._drop_entry()

    def _wake(self, wakes_s: float) -> None:
        self._wakes_s = wakes_s
        self._entry = self._timers.wake(self, wakes_s)

    def _drop_entry(self) -> None:
        self._entry = None
        self._wakes_s = math.inf
        self._timers.forget()

    # For `Timers`.

    @property
    def due_s(self) -> float:
        """Time of the call; infinite for never."""
        return self._due_s

    def waits_for(self, entry: int) -> bool:
        """Return whether that entry is the valid one."""
        return self._entry == entry

    def came_up(self, now: float) -> None:
        """The valid entry has come up and is out of the heap."""
        self._entry, self._wakes_s = None, math.inf
        if self._due_s > now:
            if self._due_s < math.inf:
                self._wake(self._due_s)
            return
        self._due_s = math.inf
        if self._function is not None:
            self._function()


class DescriptorPoller:
    """Descriptors that are watched; `run` is the task."""

    def __init__(self) -> None:
        self._epoll = select.epoll()
        self._functions: dict[int, Callable[[], None]] = {}

    def __repr__(self) -> str:
        return f"<DescriptorPoller of {len(self._functions)} descriptors>"

    def watch(self, descriptor: int, readable: Callable[[], None]) -> None:
        """Call a function whenever the descriptor can be read, until `forget`. Raises `OSError`.

        Args:
            readable: must not block or raise. It may be called although there is nothing to read.
        """
        if descriptor not in self._functions:
            self._epoll.register(descriptor, select.EPOLLIN)
        self._functions[descriptor] = readable

    def forget(self, descriptor: int) -> None:
        """Watch a descriptor no longer; its owner closes it afterwards. May be repeated.

        Another process may have a copy of the descriptor, so closing it alone would not do.
        """
        if self._functions.pop(descriptor, None) is not None:
            self._epoll.unregister(descriptor)

    async def run(self) -> None:
        """Wait and call, until cancelled."""
        try:
            while True:
                await trio.lowlevel.wait_readable(self._epoll.fileno())
                self._call()
        finally:
            self._epoll.close()

    def _call(self) -> None:
        for descriptor, _ in self._epoll.poll(0):
            function = self._functions.get(descriptor)  # others may have forgotten it meanwhile
            if function is None:
                continue
            try:
                function()
            except Exception:  # a bug of one session must not end the others
                log.exception("descriptor %d is watched no longer", descriptor)
                self.forget(descriptor)


_present: trio.lowlevel.RunVar[DescriptorPoller] = trio.lowlevel.RunVar("poller")


def poller() -> DescriptorPoller:
    """The poller of this event loop; its task starts with the first use."""
    try:
        return _present.get()
    except LookupError:
        made = DescriptorPoller()
        _present.set(made)
        trio.lowlevel.spawn_system_task(made.run)
        return made


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
