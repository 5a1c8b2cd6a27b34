"""A thread of this process in which trio runs, for callers in threads, under asyncio or trio.

Adapters are called from all three. The async client carries out their calls, so a call that is
cancelled in the framework is cancelled in nsm too, and any number of them share one connection.
"""

from __future__ import annotations

import asyncio
import atexit
import os
import threading
import weakref
from concurrent.futures import Future, InvalidStateError, wait
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import trio

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from nsm.client.asynchronous import AsyncClient
    from nsm.client.sandbox import AsyncSandbox

T = TypeVar("T")

END_S = 10.0
"""How long a program that ends waits for the end of the sandboxes that it has left open."""


class Background:
    """The thread. It is made for the first call, and ends with the process."""

    def __init__(self) -> None:
        self._endings = weakref.WeakKeyDictionary[object, Any]()
        self._forget()
        os.register_at_fork(after_in_child=self._close_in_child)
        atexit.register(self._end_all)

    def end_with(
        self, owner: object, client: AsyncClient, sandboxes: Sequence[AsyncSandbox]
    ) -> weakref.finalize[..., Any]:
        """End a client and its sandboxes once nobody has their owner, or the program ends.

        What `weakref.finalize` holds is not collected with the owner. `__del__` would come after
        the collector has closed the client's socket, while another file may have its number.

        Args:
            sandboxes: as they are then.

        Returns:
            What to detach if they have ended before.
        """
        ending = weakref.finalize(owner, self._end, client, sandboxes)
        ending.atexit = False  # it would not wait
        self._endings[owner] = ending
        return ending

    def _end(self, client: AsyncClient, sandboxes: Sequence[AsyncSandbox]) -> Future[None]:
        async def end() -> None:
            for sandbox in sandboxes:
                await sandbox.aclose()
            await client.aclose()

        return self.start(end)

    def _end_all(self) -> None:
        """End what the program has left open. Threads still run when it ends."""
        futures = [ending() for ending in list(self._endings.values())]
        wait([future for future in futures if future is not None], END_S)

    def _close_in_child(self) -> None:
        """Close a forked child's copies of connections, so that those end with its parent."""
        for ending in list(self._endings.values()):
            if (found := ending.detach()) is not None:
                found[2][0].close_in_child()
        self._forget()

    def _forget(self) -> None:
        """A forked child has none of its parent's threads."""
        self._lock = threading.Lock()
        self._nursery: trio.Nursery | None = None
        self._token: trio.lowlevel.TrioToken | None = None

    def blocking(
        self,
        function: Callable[[], Awaitable[T]],
        lost: Callable[[T], Awaitable[None]] | None = None,
    ) -> T:
        """Call a function there, and wait for its end in this thread.

        Args:
            lost: called there with a result that the caller does not get.
        """
        future = self.start(function, lost)
        try:
            return future.result()
        except BaseException:  # Ctrl-C
            self._give_up(future, lost)
            raise

    async def awaited(
        self,
        function: Callable[[], Awaitable[T]],
        lost: Callable[[T], Awaitable[None]] | None = None,
    ) -> T:
        """Call a function there, and await its end under asyncio or trio.

        Args:
            lost: called there with a result that the caller does not get.

        Cancellation: the function is cancelled, and its end is not waited for.
        """
        future = self.start(function, lost)
        if not trio.lowlevel.in_trio_run():
            try:
                return await asyncio.wrap_future(future)
            except BaseException:
                self._give_up(future, lost)
                raise
        done, token = trio.Event(), trio.lowlevel.current_trio_token()

        def tell(_: object) -> None:
            with suppress(trio.RunFinishedError):
                token.run_sync_soon(done.set)

        future.add_done_callback(tell)
        try:
            await done.wait()
        except BaseException:
            self._give_up(future, lost)
            raise
        return future.result()

    def _give_up(self, future: Future[T], lost: Callable[[T], Awaitable[None]] | None) -> None:
        """Cancel a call whose caller has gone; its result may be there already."""
        future.cancel()
        if lost is not None and not future.cancelled() and future.exception() is None:
            self.start(partial(lost, future.result()))

    def start(
        self,
        function: Callable[[], Awaitable[T]],
        lost: Callable[[T], Awaitable[None]] | None = None,
    ) -> Future[T]:
        """Start a function there. To cancel the future cancels what the function waits for.

        Args:
            lost: called there with a result that comes after the future was cancelled.
        """
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
                    try:
                        future.set_result(result)
                    except InvalidStateError:
                        if lost is not None:
                            await lost(result)

        def start_there() -> None:
            assert self._nursery is not None, "the thread is up"
            self._nursery.start_soon(run)

        token.run_sync_soon(start_there)
        return future

    def _started(self) -> trio.lowlevel.TrioToken:
        if self._token is not None:
            return self._token  # without the lock: the collector calls this anywhere
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
