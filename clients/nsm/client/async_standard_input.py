"""Standard input of code that runs, sent by the async client."""

from __future__ import annotations

import os
from collections.abc import AsyncIterable
from contextlib import AsyncExitStack, aclosing
from types import AsyncGeneratorType
from typing import TYPE_CHECKING, cast

import anyio
import anyio.lowlevel

from nsm.client.standard_input import (
    OVER,
    check_piece,
    check_supervisor,
    descriptor_of,
    pieces_of,
    write_arguments,
)
from nsm.wire.errors import NsmError
from nsm.wire.operation import PIECE_BYTES

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable
    from typing import Any

    from nsm.client.asynchronous import AsyncClient
    from nsm.client.steps import InputSource
    from nsm.wire.messages import Event


async def call_feeding(
    client: AsyncClient,
    op: str,
    args: dict[str, Any],
    *,
    source: InputSource,
    on_event: Callable[[Event], object] | None,
) -> dict[str, Any]:
    """Carry out a call that runs code, and send its input meanwhile.

    Raises:
        NsmError: what the supervisor answered, or it is too old.
    """
    check_supervisor(client.server)
    feeder = _Feeder(client, source, on_event)
    failure: Exception | None = None
    answer: dict[str, Any] = {}
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(feeder.send)
        try:
            with feeder.call:
                answer = await client.call(op, args, on_event=feeder.take)
        except Exception as error:  # noqa: BLE001  # raised below, not as one of a group
            failure = error
        feeder.stop()
    if feeder.error is not None:
        raise feeder.error
    if failure is not None:
        raise failure
    return answer


class _Feeder:
    """The task that sends the input of one call.

    Attributes:
        call: scope of the call, which is cancelled if the source fails.
        error: failure of the source, or of sending.
    """

    def __init__(
        self,
        client: AsyncClient,
        source: InputSource,
        on_event: Callable[[Event], object] | None,
    ) -> None:
        self.call = anyio.CancelScope()
        self.error: Exception | None = None
        self._client = client
        self._pieces = _pieces_of(source)
        self._on_event = on_event
        self._invited = anyio.Event()
        self._args: dict[str, Any] = {}
        self._waiting = anyio.CancelScope()
        self._stopped = False

    def take(self, event: Event) -> None:
        if event.event == "stdin":
            self._args = self._args or write_arguments(event)
            self._invited.set()
        elif self._on_event is not None:
            self._on_event(event)

    def stop(self) -> None:
        """Stop waiting for input. A request that is being written must not be cut short."""
        self._stopped = True
        self._waiting.cancel()

    async def send(self) -> None:
        async with aclosing(self._pieces):
            with self._waiting:
                await self._invited.wait()
            try:
                await self._send_all()
            except OVER:
                pass
            except NsmError as error:
                self.error = error

    async def _send_all(self) -> None:
        args = self._args
        while not self._stopped:
            piece = b""
            try:
                with anyio.CancelScope() as self._waiting:
                    piece = await anext(self._pieces, b"")
            except Exception as error:  # noqa: BLE001  # the caller gets it
                self.error = error
                self.call.cancel()
                return
            if self._waiting.cancelled_caught:
                return
            written = {**args, "data": piece} if piece else {**args, "eof": True}
            answer = await self._client.call("run_write", written)
            if not piece or answer.get("open") is not True:
                return
            args = {**args, "offset": args["offset"] + len(piece)}


async def _pieces_of(source: InputSource) -> AsyncGenerator[bytes]:
    if isinstance(source, AsyncIterable):
        async with AsyncExitStack() as stack:
            if isinstance(source, AsyncGeneratorType):  # nobody else would close it
                generator = cast("AsyncGenerator[bytes]", source)
                await stack.enter_async_context(aclosing(generator))
            async for piece in source:
                whole = check_piece(piece)
                for at in range(0, len(whole), PIECE_BYTES):
                    yield whole[at : at + PIECE_BYTES]
        return
    fd = descriptor_of(source)
    if fd is None:
        for piece in pieces_of(source):
            yield piece
        return
    while True:
        try:
            await anyio.wait_readable(fd)
        except PermissionError:  # a file of a disk, which is always ready
            await anyio.lowlevel.checkpoint()
        if not (data := os.read(fd, PIECE_BYTES)):
            return
        yield data
