"""A connection that `serve_attachment` serves over memory streams."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import trio
import trio.testing

from fake_programs import FakePrograms
from fake_runner import FakeRunner
from json_peer import Peer
from nsmd.mcp.attachment import EndpointLoader, serve_attachment
from nsmd.mcp.endpoint import serve
from nsmd.model.limits import ClientLimits


@asynccontextmanager
async def attachment(
    runner: FakeRunner,
    *,
    confined_to: str | None = None,
    programs: FakePrograms | None = None,
    client_limits: ClientLimits | None = None,
) -> AsyncGenerator[Peer, None]:
    """A connection that `serve_attachment` serves; nothing has been sent yet.

    Args:
        confined_to: the scope of a client that may only run code.
        programs: those of the bridge; None for none.
        client_limits: of a client that may only run code, in place of `confined_to`.
    """
    if confined_to is not None:
        client_limits = ClientLimits(scope=confined_to)
    ours, theirs = trio.testing.memory_stream_pair()
    async with trio.open_nursery() as nursery:

        async def serve_it() -> None:
            await serve_attachment(
                theirs,
                b"",
                runner.service,
                endpoint=EndpointLoader(serve),
                client_limits=client_limits,
                confined=client_limits is not None,
                programs=(programs or FakePrograms()).service,
            )

        nursery.start_soon(serve_it)
        try:
            yield Peer(ours)
        finally:
            await ours.aclose()  # the nursery waits until the served side has noticed
