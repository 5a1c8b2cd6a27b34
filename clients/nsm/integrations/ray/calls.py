# pyright: basic, reportMissingImports=false
"""Calls of Ray, and asyncio in a thread of its own, from which a pool makes them.

Calls of actors are awaited. Those that need the cluster's head block without it until Ray ends the
program, so each has a thread.
"""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import Future
from contextlib import suppress
from typing import TYPE_CHECKING, TypeVar

import ray
from ray.exceptions import RayTaskError

from nsm.wire.errors import NotRunningError, NsmError

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine
    from typing import Any

T = TypeVar("T")

ANSWER_S = 30.0
"""Time for the head to answer. Ray ends a program that has not reached it for a minute."""


class HeadLostError(NsmError):
    """The head of the Ray cluster does not answer."""

    code = "head-lost"


class Loop:
    """asyncio in a thread of its own."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        # A daemon: a pool that nobody closes must not keep the process from ending.
        self._thread = threading.Thread(target=self.loop.run_forever, name="nsm-ray", daemon=True)
        self._thread.start()

    def start(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        """Start work there. To cancel the future cancels the work."""
        if self.loop.is_closed():
            work.close()
            raise NotRunningError("the pool is closed", hint="Make another one.")
        return asyncio.run_coroutine_threadsafe(work, self.loop)

    def wait(self, work: Coroutine[Any, Any, T]) -> T:
        """Do work there, and wait for it in this thread."""
        future = self.start(work)
        try:
            return future.result()
        except BaseException:
            future.cancel()  # Ctrl-C
            raise

    async def awaited(self, work: Coroutine[Any, Any, T]) -> T:
        """Run work on this thread's loop, and await it on the caller's; cancelling cancels it."""
        return await asyncio.wrap_future(self.start(work))

    def close(self) -> None:
        """End the thread, after what was called there has ended."""
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join()
        self.loop.close()


async def asked(reference: Any) -> Any:
    """Await the result of a call; errors are those that the actor raised.

    Cancellation: the call is cancelled, too.
    """
    try:
        return await reference
    except RayTaskError as error:
        cause = error.cause
        raise cause if isinstance(cause, Exception) else error from None
    except asyncio.CancelledError:
        ray.cancel(reference, force=False)
        raise


async def ask_head(
    function: Callable[..., T],
    *arguments: Any,
    late: Callable[[T], object] | None = None,
) -> T:
    """Call a function of Ray in a thread of its own.

    Args:
        late: called in that thread with the result, to undo it, if nobody waits for that any more.

    Raises:
        HeadLostError: it takes too long.

    Cancellation: the function goes on.
    """
    outcome: Future[T] = Future()

    def work() -> None:
        try:
            result = function(*arguments)
        except BaseException as error:  # noqa: BLE001  # the caller raises it
            if outcome.set_running_or_notify_cancel():
                outcome.set_exception(error)
            return
        if outcome.set_running_or_notify_cancel():
            outcome.set_result(result)
        elif late is not None:
            with suppress(Exception):
                late(result)

    # A daemon: a head that does not answer must not keep the process from ending.
    threading.Thread(target=work, name="nsm-ray-head", daemon=True).start()
    try:
        async with asyncio.timeout(ANSWER_S):
            return await asyncio.wrap_future(outcome)
    except TimeoutError:
        raise HeadLostError(
            f"the head of the Ray cluster has not answered for {ANSWER_S:g} s, so nothing can be "
            "placed",
            hint="Calls in sandboxes go on. Save what you need: Ray ends this program a minute "
            "after it has lost the head, and the sessions with it.",
        ) from None
