"""Timers, reads whose disk may hang, and threads that cannot be had."""

from __future__ import annotations

import gc
import os
import threading
import weakref
from collections.abc import Callable, Generator, Iterator
from contextlib import asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from nsmd.host import event_loop
from nsmd.host.event_loop import AHEAD_S, BoundedReads, ReserveThread, Timer, Timers, poller

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator


class Disk:
    """A disk that hangs until it is mended."""

    def __init__(self) -> None:
        self.mended, self.ended = threading.Event(), threading.Event()

    def read(self) -> str:
        self.mended.wait()
        self.ended.set()
        return "data"


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Iterator[Disk]:
    monkeypatch.setattr(event_loop, "WAIT_S", 0.01)
    disk = Disk()
    yield disk
    disk.mended.set()
    disk.ended.wait()


def test_after_a_read_hangs_the_next_fails_at_once(
    disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    reads = BoundedReads()
    with pytest.raises(TimeoutError, match="its disk does not answer"):
        reads.read("a", disk.read)
    monkeypatch.setattr(event_loop, "WAIT_S", 60.0)
    with pytest.raises(TimeoutError):
        reads.read("a", lambda: pytest.fail("it would hang, too"))
    assert reads.read("b", lambda: 1) == 1, "another disk"


def test_a_disk_that_answers_again_is_read_again(
    disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    delivered, start = threading.Event(), trio.lowlevel.start_thread_soon

    def start_and_note(function: Callable[[], Any], deliver: Callable[[Any], object]) -> None:
        def note(result: Any) -> None:
            deliver(result)
            delivered.set()

        start(function, note)

    monkeypatch.setattr(trio.lowlevel, "start_thread_soon", start_and_note)
    reads = BoundedReads()
    with pytest.raises(TimeoutError):
        reads.read("a", disk.read)
    disk.mended.set()
    delivered.wait()
    monkeypatch.setattr(event_loop, "WAIT_S", 60.0)
    assert reads.read("a", disk.read) == "data"


@pytest.fixture
def events() -> Generator[tuple[int, int]]:
    """Two descriptors that can be read once something was written to them."""
    made = os.eventfd(0), os.eventfd(0)
    yield made
    for fd in made:
        os.close(fd)


async def test_a_descriptor_that_was_forgotten_is_told_no_more(events: tuple[int, int]) -> None:
    """Not even in the turn in which it could be read, by what another one has led to."""
    told: list[int] = []

    def forget_all(fd: int) -> None:
        told.append(fd)
        for each in events:
            poller().forget(each)

    for fd in events:
        poller().watch(fd, partial(forget_all, fd))
        os.eventfd_write(fd, 1)
    await wait_all_tasks_blocked()
    assert len(told) == 1
    poller().forget(told[0])  # it may be repeated


async def test_a_function_that_fails_harms_no_other(
    events: tuple[int, int], caplog: pytest.LogCaptureFixture
) -> None:
    told: list[int] = []
    bad, good = events

    def fail() -> None:
        raise ValueError("a bug")

    poller().watch(bad, fail)
    poller().watch(good, lambda: told.append(os.eventfd_read(good)))
    os.eventfd_write(bad, 1)
    await wait_all_tasks_blocked()
    os.eventfd_write(good, 1)
    await wait_all_tasks_blocked()
    poller().forget(good)
    assert told == [1]
    assert "a bug" in caplog.text


async def no_thread(_function: object, **_options: object) -> Any:
    """Fail as trio does if no thread can be started."""
    raise RuntimeError("can't start new thread")


async def test_a_function_runs_in_the_reserve_if_no_thread_can_be_started() -> None:
    reserve = ReserveThread(no_thread)
    threads: list[str] = []

    def function(number: int) -> int:
        threads.append(threading.current_thread().name)
        return number + 1

    async with trio.open_nursery() as nursery:
        for _ in range(5):
            nursery.start_soon(reserve.run_sync, function, 1)
        assert await reserve.run_sync(function, 41) == 42
    assert threads == ["reserve"] * 6


@pytest.mark.parametrize("abandons", [True, False])
async def test_a_caller_who_is_cancelled_waits_unless_it_abandons(abandons: bool) -> None:
    reserve = ReserveThread(no_thread)
    begun, go_on, ended = threading.Event(), threading.Event(), threading.Event()

    def function() -> None:
        begun.set()
        go_on.wait()
        ended.set()

    async def cancel_once_begun(scope: trio.CancelScope) -> None:
        await trio.to_thread.run_sync(begun.wait)
        scope.cancel()
        if not abandons:
            go_on.set()

    async with trio.open_nursery() as nursery:
        with trio.CancelScope() as scope:
            nursery.start_soon(cancel_once_begun, scope)
            await reserve.run_sync(function, abandon_on_cancel=abandons)
        assert ended.is_set() is not abandons
        assert scope.cancelled_caught is abandons
    go_on.set()
    await trio.to_thread.run_sync(ended.wait)
    assert await reserve.run_sync(lambda: "next") == "next"


@asynccontextmanager
async def running() -> AsyncGenerator[Timers]:
    timers = Timers()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(timers.run)
        yield timers
        nursery.cancel_scope.cancel()


class Noting:
    """A timer, and the times since it was made at which it called."""

    def __init__(self, timers: Timers) -> None:
        self.calls: list[float] = []
        self.timer = Timer(timers, self._note)
        self._start_s = trio.current_time()

    def _note(self) -> None:
        self.calls.append(trio.current_time() - self._start_s)


@pytest.mark.parametrize(
    ("settings", "called"),
    [
        ([(0, 5)], [5]),
        ([(0, 5), (1, 5)], [6]),  # later than before
        ([(0, 5), (1, 1)], [2]),  # earlier than before
        ([(0, 5), (1, 1), (1, 9)], [10]),
        ([(0, 5), (1, None)], []),
        ([(0, 5), (1, None), (2, 10)], [12]),
        ([(0, 1), (3, 1)], [1, 4]),
        ([(0, 100), (1, 2), (10, 2)], [3, 12]),
        ([(0, 0)], [0]),
    ],
)
async def test_a_timer_calls_when_it_is_due(
    settings: list[tuple[float, float | None]], called: list[float], autojump_clock: trio.abc.Clock
) -> None:
    """Settings are (when, seconds to wait), None to disarm."""
    async with running() as timers:
        it, start_s = Noting(timers), trio.current_time()
        for when_s, seconds in settings:
            await trio.sleep_until(start_s + when_s)
            if seconds is None:
                it.timer.disarm()
            else:
                it.timer.arm(seconds)
        await trio.sleep(1000)
        assert it.calls == pytest.approx(called)
        assert len(timers) == 0


async def test_a_closed_timer_holds_nothing(autojump_clock: trio.abc.Clock) -> None:
    """A session's lifetime is a week; its timer must not hold it that long."""
    async with running() as timers:
        ended = Noting(timers)
        held = weakref.ref(ended)
        ended.timer.arm(7 * 86400)
        ended.timer.close()
        del ended
        gc.collect()
        assert held() is None
        lasting = Noting(timers)
        lasting.timer.arm(50)
        for _ in range(10_000):
            it = Noting(timers)
            it.timer.arm(7 * 86400)
            it.timer.close()
            assert len(timers) < 100
        await trio.sleep(100)
        assert lasting.calls == pytest.approx([50])


class Wakes(trio.abc.Instrument):
    """Counts how often the timers' task goes on."""

    def __init__(self) -> None:
        self.count = 0

    def before_task_step(self, task: trio.lowlevel.Task) -> None:
        self.count += "Timers.run" in task.name


async def test_timers_that_were_disarmed_wake_it_once(autojump_clock: trio.abc.Clock) -> None:
    """A thousand sessions have each run something: their timeouts come up for nothing."""
    async with running() as timers:
        many = [Noting(timers) for _ in range(1000)]
        for each in many:
            each.timer.arm(40)
            await trio.sleep(AHEAD_S / len(many) / 2)
            each.timer.disarm()
        wakes = Wakes()
        trio.lowlevel.add_instrument(wakes)
        await trio.sleep(60)
        trio.lowlevel.remove_instrument(wakes)
        assert len(timers) == 0
        assert not any(each.calls for each in many)
        assert 0 < wakes.count < 10
