"""Functions that block, where no further thread can be started."""

from __future__ import annotations

import threading
from typing import Any

import pytest
import trio

from nsmd.host.event_loop import ReserveThread


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


async def test_errors_of_the_function_come_to_the_caller() -> None:
    calls = 0

    def fails() -> None:
        nonlocal calls
        calls += 1
        raise RuntimeError("of the function")

    for run_sync in (no_thread, trio.to_thread.run_sync):
        with pytest.raises(RuntimeError, match="of the function"):
            await ReserveThread(run_sync).run_sync(fails)
    assert calls == 2


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
