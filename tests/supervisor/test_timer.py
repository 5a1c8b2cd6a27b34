"""The timer calls once, when it is due, however often it was set anew. Time is virtual."""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import pytest
import trio

from nsmd.timer import Timer

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator


@asynccontextmanager
async def running() -> AsyncGenerator[tuple[Timer, list[float]]]:
    """A timer that runs, and the times at which it called since now."""
    timer, calls = Timer(), list[float]()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(timer.run)
        yield timer, calls
        nursery.cancel_scope.cancel()


def note(calls: list[float], start_s: float) -> None:
    calls.append(trio.current_time() - start_s)


@pytest.mark.parametrize(
    ("settings", "called"),
    [
        ([(0, 5)], [5]),
        ([(0, 5), (1, 5)], [6]),  # later than before
        ([(0, 5), (1, 1)], [2]),  # earlier than before
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
    async with running() as (timer, calls):
        start_s = trio.current_time()
        for when_s, seconds in settings:
            await trio.sleep_until(start_s + when_s)
            if seconds is None:
                timer.disarm()
            else:
                timer.arm(seconds, lambda: note(calls, start_s))
        await trio.sleep(1000)
        assert calls == pytest.approx(called)


async def test_what_is_called_may_arm_it_again(autojump_clock: trio.abc.Clock) -> None:
    async with running() as (timer, calls):
        start_s = trio.current_time()

        def again() -> None:
            note(calls, start_s)
            if len(calls) < 3:
                timer.arm(7, again)

        timer.arm(7, again)
        await trio.sleep(1000)
        assert calls == pytest.approx([7, 14, 21])


async def test_it_can_be_armed_before_it_runs(autojump_clock: trio.abc.Clock) -> None:
    timer, calls = Timer(), list[float]()
    start_s = trio.current_time()
    timer.arm(3, lambda: note(calls, start_s))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(timer.run)
        await trio.sleep(10)
        assert calls == pytest.approx([3])
        nursery.cancel_scope.cancel()
