"""The `mcp` package's session manager on the endpoint. HEAVY: imports `mcp`.

The manager serves both eras: in the handshake revisions a session for each client that initializes,
in the handshake-free one each request by itself. One endpoint answers all of them, since
environments and rights are the same for everybody who has the token.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import trio
from mcp.server.lowlevel import Server
from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
from sse_starlette import EventSourceResponse

from nsm.http.exchange import Application, Message, Receive, Send
from nsmd.bridge.bridge import BridgeService
from nsmd.http.replay import RETRY_MS, Replays
from nsmd.manager.run_service import RunService
from nsmd.mcp import messages
from nsmd.mcp.attachment import Attach
from nsmd.mcp.endpoint import Endpoint

MAX_SESSIONS = 512
"""Largest number of sessions of clients that have initialized. A client that disappears leaves its
session behind.
"""

SESSION_IDLE_S = 30 * 60.0
"""A session ends that long after its last request; the client then gets an error, and initializes
again.
"""

PING_S = 60
"""Time between comments on an open stream, for clients that take a silent one for dead (code may
take longer than the shortest timeout of clients, 300 s). The package's own 15 s would wake an idle
supervisor for each stream.
"""

_CHATTY = ("mcp.server.streamable_http_manager", "mcp.server.streamable_http")
"""Loggers with a line for each session, and for each request too many; the audit and the events
have these, too.
"""

_JSON = ((b"content-type", b"application/json"),)


@asynccontextmanager
async def open_front(
    attach: Attach,
    runner: RunService,
    programs: BridgeService,
    *,
    max_result_chars: int,
    max_body_bytes: int,
) -> AsyncGenerator[Application]:
    """Open the application that answers admitted requests.

    Args:
        attach: entry of all clients, which are confined.
    """
    endpoint = Endpoint(attach, runner, max_result_chars, programs, way="http")
    async with trio.open_nursery() as nursery:
        nursery.start_soon(endpoint.announce)
        async with answering(endpoint.server, max_body_bytes=max_body_bytes) as front:
            yield front
        nursery.cancel_scope.cancel()


@asynccontextmanager
async def answering(server: Server[Any], *, max_body_bytes: int) -> AsyncGenerator[Application]:
    """Serve a server of the `mcp` package by nsm's HTTP."""
    for name in _CHATTY:
        logging.getLogger(name).setLevel(logging.ERROR)
    # There is no other way to it; type checkers assume all types that it may have.
    EventSourceResponse.DEFAULT_PING_INTERVAL = PING_S  # pyright: ignore[reportAttributeAccessIssue]
    replays = Replays(SESSION_IDLE_S, MAX_SESSIONS)
    manager = StreamableHTTPSessionManager(
        server,
        event_store=replays,
        retry_interval=RETRY_MS,
        session_idle_timeout=SESSION_IDLE_S,
        max_request_body_size=max_body_bytes,
        max_sessions=2 * MAX_SESSIONS,  # beyond ours, idle ones end
    )
    async with manager.run():
        yield partial(_well_shaped, partial(replays.serve, manager.handle_request))


async def _well_shaped(
    application: Application, scope: dict[str, Any], receive: Receive, send: Send
) -> None:
    """Refuse a body with too much structure before it is parsed: the manager would parse it, and
    block everybody.
    """
    whole = await receive()  # all of the body, or that the client is gone
    body = whole.get("body", b"")
    if why := messages.why_too_complex(body):
        text = messages.encode(messages.misshapen_error(body, why))
        await send({"type": "http.response.start", "status": 400, "headers": _JSON})
        await send({"type": "http.response.body", "body": text})
        return

    unread = [whole]

    async def received() -> Message:
        return unread.pop() if unread else await receive()

    await application(scope, received, send)
