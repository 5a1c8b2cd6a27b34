"""Connections that `serve_attachment` serves over memory streams."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import trio
import trio.testing

from fake_programs import FakePrograms
from fake_runner import FakeRunner
from json_peer import Message, Peer
from nsmd.mcp.attachment import EndpointLoader, serve_attachment
from nsmd.mcp.endpoint import serve
from nsmd.model.limits import ClientLimits


async def serve_stream(
    stream: trio.abc.HalfCloseableStream,
    runner: FakeRunner,
    *,
    first_bytes: bytes = b"",
    programs: FakePrograms | None = None,
    loader: EndpointLoader | None = None,
    **more: Any,
) -> None:
    """Serve a stream, without the MCP package's import and without programs by default."""
    await serve_attachment(
        stream,
        first_bytes,
        runner.service,
        endpoint=loader or EndpointLoader(serve),
        programs=(programs or FakePrograms()).service,
        **more,
    )


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
        limits: dict[str, Any] = {
            "client_limits": client_limits,
            "confined": client_limits is not None,
        }
        nursery.start_soon(partial(serve_stream, theirs, runner, programs=programs, **limits))
        try:
            yield Peer(ours)
        finally:
            await ours.aclose()  # the nursery waits until the served side has noticed


@asynccontextmanager
async def served(
    runner: FakeRunner,
    variables: dict[str, str] | None = None,
    version: str = "2025-11-25",
    *,
    cwd: str | None = "/somewhere",
    name: str = "old-client",
    capabilities: Message | None = None,
    **attached: Any,
) -> AsyncGenerator[Peer, None]:
    """A client that has attached and shaken hands.

    Args:
        variables, cwd: of its attach line.
        version, name, capabilities: of its handshake.
        attached: arguments of `attachment`.
    """
    async with attachment(runner, **attached) as peer:
        await peer.attach(variables, cwd)
        await peer.initialize(version, name=name, capabilities=capabilities)
        yield peer
