"""A connection that `serve_attachment` serves over memory streams."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import trio
import trio.testing

from fake_runner import FakeRunner
from json_peer import Peer
from nsmd.boundary import Boundary
from nsmd.mcp.attachment import serve_attachment
from nsmd.mcp.endpoint import serve
from nsmd.mcp.load import EndpointLoader


@asynccontextmanager
async def attachment(
    runner: FakeRunner, *, confined_to: str | None = None
) -> AsyncGenerator[Peer, None]:
    """A connection that `serve_attachment` serves; nothing has been sent yet.

    Args:
        confined_to: the scope of a client that may only run code.
    """
    ours, theirs = trio.testing.memory_stream_pair()
    async with trio.open_nursery() as nursery:

        async def serve_it() -> None:
            await serve_attachment(
                theirs,
                b"",
                runner,
                endpoint=EndpointLoader(serve),
                boundary=None if confined_to is None else Boundary(scope=confined_to),
                confined=confined_to is not None,
            )

        nursery.start_soon(serve_it)
        try:
            yield Peer(ours)
        finally:
            await ours.aclose()  # the nursery waits until the served side has noticed
