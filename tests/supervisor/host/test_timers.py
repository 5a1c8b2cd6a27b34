"""Each timer calls once, when it is due, however often it was set again. Time is virtual."""

from __future__ import annotations

import gc
import weakref
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import pytest
import trio

from nsmd.host.event_loop import AHEAD_S, Timer, Timers

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator


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
async def test_it_calls_when_it_is_due(
    settings: list[tuple[float, float | None]],
    called: list[float],
    autojump_clock: trio.abc.Clock,
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


async def test_what_is_called_may_arm_it_again(autojump_clock: trio.abc.Clock) -> None:
    async with running() as timers:
        calls = list[float]()
        start_s = trio.current_time()

        def again() -> None:
            calls.append(trio.current_time() - start_s)
            if len(calls) < 3:
                timer.arm(7)

        timer = Timer(timers, again)
        timer.arm(7)
        await trio.sleep(1000)
        assert calls == pytest.approx([7, 14, 21])


async def test_it_can_be_armed_before_they_run(autojump_clock: trio.abc.Clock) -> None:
    timers = Timers()
    it = Noting(timers)
    it.timer.arm(3)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(timers.run)
        await trio.sleep(10)
        assert it.calls == pytest.approx([3])
        nursery.cancel_scope.cancel()


async def test_many_are_kept_apart(autojump_clock: trio.abc.Clock) -> None:
    async with running() as timers:
        every = [Noting(timers) for _ in range(1000)]
        for n, it in enumerate(every):
            it.timer.arm(1 + n * 7 % 1000)
        for it in every[::2]:
            it.timer.disarm()
        await trio.sleep(2000)
        assert [it.calls for it in every[::2]] == [[]] * 500
        assert [it.calls for it in every[1::2]] == [[1 + n * 7 % 1000] for n in range(1, 1000, 2)]


async def test_one_that_is_put_off_keeps_its_place(autojump_clock: trio.abc.Clock) -> None:
    """A setting takes neither an entry nor a wake-up."""
    async with running() as timers:
        it = Noting(timers)
        for _ in range(1000):
            it.timer.arm(40)
            it.timer.disarm()
        assert len(timers) == 1


async def test_what_is_closed_is_not_held(autojump_clock: trio.abc.Clock) -> None:
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


async def test_one_that_is_armed_ever_earlier(autojump_clock: trio.abc.Clock) -> None:
    async with running() as timers:
        it = Noting(timers)
        for n in range(10_000):
            it.timer.arm(10_001 - n)
            assert len(timers) < 200
        await trio.sleep(20_000)
        assert it.calls == pytest.approx([2])
        assert len(timers) == 0


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


async def test_what_is_due_soon_is_not_called_early(autojump_clock: trio.abc.Clock) -> None:
    async with running() as timers:
        disarmed, due, put_off = Noting(timers), Noting(timers), Noting(timers)
        disarmed.timer.arm(1)
        disarmed.timer.disarm()
        due.timer.arm(3)
        put_off.timer.arm(2)
        put_off.timer.arm(4)
        await trio.sleep(100)
        assert disarmed.calls == []
        assert due.calls == pytest.approx([3])
        assert put_off.calls == pytest.approx([4])
