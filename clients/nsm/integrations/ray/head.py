# pyright: basic, reportMissingImports=false
"""Calls of Ray that need the cluster's head, and block without it until Ray ends the program."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import Future
from contextlib import suppress
from typing import TYPE_CHECKING

from nsm.wire.errors import NsmError

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, TypeVar

    T = TypeVar("T")

ANSWER_S = 30.0
"""Time for the head to answer. Ray ends a program that has not reached it for a minute."""


class HeadLostError(NsmError):
    """The head of the Ray cluster does not answer."""

    code = "head-lost"


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
