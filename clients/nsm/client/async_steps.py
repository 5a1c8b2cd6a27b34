"""Steps (`nsm.client.steps`) on trio."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, TypeVar

import trio

from nsm.client.steps import is_operation

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from typing import Any

    from nsm.client.steps import Steps
    from nsm.wire.messages import Event
    from nsm.wire.operation import OperationCall

T = TypeVar("T")

CLOSE_TIMEOUT_S = 5.0
"""How long steps that were cancelled may still take, to close a file in the session."""


async def carry_out(
    steps: Steps[T], call: Callable[[str, dict[str, Any]], Awaitable[dict[str, Any]]]
) -> T:
    """Carry out steps, as `nsm.client.steps.carry_out`; functions are called in a thread."""
    closing = False
    try:
        step = next(steps)
        while True:
            answer: dict[str, Any] = {}
            try:
                if is_operation(step):
                    # What is cancelled still closes its file: a session has few of them.
                    limit_s = CLOSE_TIMEOUT_S if closing else math.inf
                    with trio.move_on_after(limit_s, shield=closing):
                        answer = await call(*step)
                elif step is not None:
                    # If it is abandoned, it ends when its pipe breaks.
                    await trio.to_thread.run_sync(step, abandon_on_cancel=True)
                else:
                    await trio.lowlevel.checkpoint()
            except BaseException as error:  # noqa: BLE001  # the steps raise it again
                closing = closing or not isinstance(error, Exception)
                step = steps.throw(error)
            else:
                step = steps.send(answer)
    except StopIteration as end:
        outcome: T = end.value
        return outcome


class AsyncCalls:
    """Operations over a connection on trio. `nsm.AsyncClient` is one of these."""

    async def call(
        self,
        op: str,
        args: dict[str, Any] | None = None,
        *,
        on_event: Callable[[Event], object] | None = None,
    ) -> dict[str, Any]:
        """Call any operation. `nsm.AsyncClient` has it."""
        raise NotImplementedError

    async def ask(
        self, call: OperationCall[T], *, on_event: Callable[[Event], object] | None = None
    ) -> T:
        """Call any operation, as `nsm.wire` describes it."""
        return call.read(await self.call(call.op, call.args, on_event=on_event))

    async def carry_out(self, steps: Steps[T]) -> T:
        """Carry out steps."""
        return await carry_out(steps, self.call)


async def with_grace(function: Callable[[], Awaitable[object]], grace_s: float) -> None:
    """Run a function that has `grace_s` seconds left when this is cancelled."""
    scope = trio.CancelScope(shield=True)

    async def limit_when_cancelled() -> None:
        try:
            await trio.sleep_forever()
        finally:
            scope.deadline = trio.current_time() + grace_s

    error: Exception | None = None
    async with trio.open_nursery() as nursery:
        nursery.start_soon(limit_when_cancelled)
        with scope:
            try:
                await function()
            except Exception as caught:  # noqa: BLE001  # the nursery would put it into a group
                error = caught
        nursery.cancel_scope.cancel()
    if error is not None:
        raise error
