"""A thread of this process in which trio runs, for callers in threads, under asyncio or trio.

Adapters are called from all three. The client on trio carries out their calls, so a call that is
cancelled in the framework is cancelled in nsm too, and any number of them share one connection.
"""

from __future__ import annotations

import asyncio
import os
import threading
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from typing import TYPE_CHECKING, TypeVar

import trio

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

T = TypeVar("T")


class Background:
    """The thread. It is made for the first call, and ends with the process."""

    def __init__(self) -> None:
        self._forget()
        os.register_at_fork(after_in_child=self._forget)

    def _forget(self) -> None:
        """A forked child has none of its parent's threads."""
        self._lock = threading.Lock()
        self._nursery: trio.Nursery | None = None
        self._token: trio.lowlevel.TrioToken | None = None

    def blocking(self, function: Callable[[], Awaitable[T]]) -> T:
        """Call a function there, and wait for its end in this thread."""
        future = self.start(function)
        try:
            return future.result()
        except BaseException:
            future.cancel()  # Ctrl-C
            raise

    async def awaited(self, function: Callable[[], Awaitable[T]]) -> T:
        """Call a function there, and await its end under asyncio or trio.

        Cancellation: the function is cancelled, and its end is not waited for.
        """
        future = self.start(function)
        if not trio.lowlevel.in_trio_run():
            return await asyncio.wrap_future(future)
        done, token = trio.Event(), trio.lowlevel.current_trio_token()

        def tell(_: object) -> None:
            with suppress(trio.RunFinishedError):
                token.run_sync_soon(done.set)

        future.add_done_callback(tell)
        try:
            await done.wait()
        except BaseException:
            future.cancel()
            raise
        return future.result()

    def start(self, function: Callable[[], Awaitable[T]]) -> Future[T]:
        """Start a function there. To cancel the future cancels what the function waits for."""
        future: Future[T] = Future()
        token = self._started()

        async def run() -> None:
            with trio.CancelScope() as scope:

                def cancel_with(done: Future[T]) -> None:
                    if done.cancelled():
                        token.run_sync_soon(scope.cancel)

                future.add_done_callback(cancel_with)
                try:
                    result = await function()
                except Exception as error:  # noqa: BLE001  # the caller gets it
                    with suppress(InvalidStateError):
                        future.set_exception(error)
                else:
                    with suppress(InvalidStateError):
                        future.set_result(result)

        def start_there() -> None:
            assert self._nursery is not None, "the thread is up"
            self._nursery.start_soon(run)

        token.run_sync_soon(start_there)
        return future

    def _started(self) -> trio.lowlevel.TrioToken:
        with self._lock:
            if self._token is None:
                ready = threading.Event()
                # A daemon: it must not keep the process from ending.
                name = "nsm"
                threading.Thread(
                    target=trio.run, args=(self._main, ready), name=name, daemon=True
                ).start()
                ready.wait()
            assert self._token is not None, "it was set before `ready`"
            return self._token

    async def _main(self, ready: threading.Event) -> None:
        async with trio.open_nursery() as nursery:
            self._nursery, self._token = nursery, trio.lowlevel.current_trio_token()
            ready.set()
            await trio.sleep_forever()


BACKGROUND = Background()
