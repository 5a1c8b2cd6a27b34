"""A trio loop beside the tests, which keeps a launcher of forks from one test to the next."""

from __future__ import annotations

import threading
from collections.abc import Awaitable, Callable, Hashable
from contextlib import AbstractAsyncContextManager
from typing import TypeVar, TypeVarTuple

import trio

from nsmd.jail import Launcher

T = TypeVar("T")
Ts = TypeVarTuple("Ts")


class Background:
    """Runs coroutines for blocking tests, and holds the launcher that was asked for last.

    Resources: a thread, and what the launcher has started, until `close`.
    """

    def __init__(self) -> None:
        self._started = threading.Event()
        self._thread = threading.Thread(target=trio.run, args=(self._main,))
        self._thread.start()
        self._started.wait()
        self._key: Hashable = None
        self._release = trio.Event()
        self._released = trio.Event()
        self._released.set()
        self._launcher: Launcher | None = None

    async def _main(self) -> None:
        self._token = trio.lowlevel.current_trio_token()
        self._end = trio.Event()
        async with trio.open_nursery() as self._nursery:
            self._started.set()
            await self._end.wait()
            self._nursery.cancel_scope.cancel()

    def run(self, function: Callable[[*Ts], Awaitable[T]], *arguments: *Ts) -> T:
        """Call it in the loop and wait for what it returns or raises."""
        return trio.from_thread.run(function, *arguments, trio_token=self._token)

    def close(self) -> None:
        """End the loop and all that was started in it."""
        self._token.run_sync_soon(self._end.set)
        self._thread.join()

    async def launcher(
        self, key: Hashable, opened: Callable[[], AbstractAsyncContextManager[Launcher]]
    ) -> Launcher:
        """The launcher of that key, opened unless it was asked for last."""
        held = self._launcher
        if held is None or key != self._key:
            self._release.set()
            await self._released.wait()
            self._key = key
            held = self._launcher = await self._nursery.start(self._hold, opened)
        return held

    async def _hold(
        self,
        opened: Callable[[], AbstractAsyncContextManager[Launcher]],
        task_status: trio.TaskStatus[Launcher],
    ) -> None:
        self._release, self._released = trio.Event(), trio.Event()
        released = self._released
        try:
            async with opened() as launcher:
                task_status.started(launcher)
                await self._release.wait()
        finally:
            released.set()
