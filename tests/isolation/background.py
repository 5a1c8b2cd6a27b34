"""A trio loop beside the tests, which keeps launchers and sessions from one test to the next."""

from __future__ import annotations

import threading
from collections.abc import Awaitable, Callable, Hashable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Any, TypeVar, TypeVarTuple, cast

import trio

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

Opened = Callable[[], AbstractAsyncContextManager[T]]


@dataclass(frozen=True, slots=True)
class _Kept:
    key: Hashable
    value: object
    release: trio.Event
    released: trio.Event


class Background:
    """Runs coroutines for blocking tests, and keeps what they have opened.

    Resources: a thread, and what is kept, until `close`.
    """

    def __init__(self) -> None:
        self._started = threading.Event()
        self._thread = threading.Thread(target=trio.run, args=(self._main,))
        self._thread.start()
        self._started.wait()
        self._kept: dict[str, _Kept] = {}

    async def _main(self) -> None:
        self._token = trio.lowlevel.current_trio_token()
        self._end = trio.Event()
        async with trio.open_nursery() as self._nursery:
            self._started.set()
            await self._end.wait()
            await self._drop(0)

    def run(self, function: Callable[[*Ts], Awaitable[T]], *arguments: *Ts) -> T:
        """Call it in the loop and wait for what it returns or raises."""
        return trio.from_thread.run(function, *arguments, trio_token=self._token)

    def close(self) -> None:
        """End the loop and all that is kept in it."""
        self._token.run_sync_soon(self._end.set)
        self._thread.join()

    async def kept(self, place: str, key: Hashable, opened: Opened[T]) -> T:
        """Return the object kept for this key, opening it unless it is open.

        What was opened after it is closed before it: that may depend on it.
        """
        held = self._kept.get(place)
        if held is None or held.key != key:
            await self.drop(place)
            held = cast("_Kept", await self._nursery.start(self._hold, key, opened))
            self._kept[place] = held
        return cast("T", held.value)

    async def drop(self, place: str) -> None:
        """Close what is kept there, if anything is."""
        if place in self._kept:
            await self._drop(list(self._kept).index(place))

    async def _drop(self, first: int) -> None:
        for place in reversed(list(self._kept)[first:]):
            held = self._kept.pop(place)
            held.release.set()
            await held.released.wait()

    @staticmethod
    async def _hold(
        key: Hashable, opened: Opened[Any], task_status: trio.TaskStatus[_Kept]
    ) -> None:
        released = trio.Event()
        try:
            async with opened() as value:
                held = _Kept(key, value, trio.Event(), released)
                task_status.started(held)
                await held.release.wait()
        finally:
            released.set()
