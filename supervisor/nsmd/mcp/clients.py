"""Clients behind the SDK: who calls, their directories, and the tools that they have been told of.

Behind a shim, a request's own context is the router's `McpRequest`. Other transports have another
context: their requests have no numbers, and if a handler is cancelled, the client cancelled the
request, unless the transport knows better.

A client that has never listed the tools learns of everything when it does. Any other client gets
one notice for all changes until the notice is sent: in the handshake revisions as a notification,
in the handshake-free one on the streams that it opened (`subscriptions/listen`).
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Sequence
from contextlib import ExitStack
from typing import Any
from urllib.parse import unquote, urlsplit

import trio
from mcp.server.context import ServerRequestContext
from mcp.server.session import ServerSession
from mcp.server.subscriptions import InMemorySubscriptionBus, ListenHandler, ToolsListChanged
from mcp.shared.exceptions import MCPError
from mcp.shared.jsonrpc_dispatcher import progress_token_from_params
from mcp_types import JSONRPCMessage, JSONRPCNotification, ListRootsRequest, ListRootsResult
from mcp_types.version import MODERN_PROTOCOL_VERSIONS
from pydantic import ValidationError

from nsmd.mcp.attachment import TAKEN_BACK
from nsmd.mcp.router import McpRequest, Number
from nsmd.model.values import ClientIdentity, Environment

Context = ServerRequestContext[Any, Any]

_MAX_CLIENT_CHARS = 64


def call_of(ctx: Context) -> McpRequest | None:
    """The router's own context of a request."""
    return ctx.request if isinstance(ctx.request, McpRequest) else None


def number_of(ctx: Context) -> Number | None:
    """Number with which a shim would repeat the request."""
    return ctx.request.number if isinstance(ctx.request, McpRequest) else None


def began_before_s(ctx: Context) -> float:
    """Seconds since it was sent first, if it was sent before; else 0."""
    number = number_of(ctx)
    return (number.again_s if number is not None else None) or 0.0


def taken_back(ctx: Context) -> bool:
    """True: the client cancelled the request and is still there. False: its connection is gone."""
    call = call_of(ctx)
    if call is not None:
        return call.cancelled
    scope: dict[str, Any] = getattr(ctx.request, "scope", {})
    return bool(scope.get(TAKEN_BACK, _always)())


def _always() -> bool:
    return True


def wants_progress(ctx: Context) -> bool:
    """Return whether the client asked for progress."""
    return progress_token_from_params(ctx.params) is not None


async def report(ctx: Context, seconds: float, text: str) -> None:
    """Report progress of a request to the client (an `nsmd.mcp.progress.Report`)."""
    await ctx.session.report_progress(seconds, None, text)


def client_name(given: str) -> str:
    """The name that a client gives itself, as it appears in terminals, logs and scopes."""
    name = "".join(c if c.isalnum() or c in "._-" else "-" for c in given[:_MAX_CLIENT_CHARS])
    return name.strip("-") or "unknown"


log = logging.getLogger(__name__)

ROOTS_TIMEOUT_S = 2.0
"""Time for a client's answer to `roots/list`; after that it counts as having none. A call waits for
it.
"""


class ClientRoots:
    """The client's first root: requested once, and again after a change."""

    def __init__(self) -> None:
        self._lock = trio.Lock()  # calls come in parallel, but the client is asked once
        self._known = False
        self._first: str | None = None
        self._changes = 0

    @property
    def last(self) -> str | None:
        """The first root in the client's last answer; it is not asked."""
        return self._first

    def to_be_asked(self, ctx: Context) -> bool:
        """Return whether the client has roots but has not sent them yet."""
        return not self._known and _can_be_asked(ctx)

    def forget(self) -> None:
        """Note that they have changed."""
        self._known = False
        self._changes += 1

    async def first(self, ctx: Context) -> str | None:
        """Path of the first root; None if the client has none, or does not answer."""
        if not _can_be_asked(ctx):
            return None
        async with self._lock:
            if not self._known:
                changes = self._changes
                self._first = await _ask_first_root(ctx)
                self._known = changes == self._changes  # otherwise they changed while it answered
            return self._first


def _can_be_asked(ctx: Context) -> bool:
    capabilities = ctx.session.client_capabilities
    has_roots = capabilities is not None and capabilities.roots is not None
    return has_roots and ctx.session.can_send_request


async def _ask_first_root(ctx: Context) -> str | None:
    try:
        answer = await ctx.session.send_request(
            ListRootsRequest(), ListRootsResult, request_read_timeout_seconds=ROOTS_TIMEOUT_S
        )
    except (MCPError, ValidationError) as error:
        log.info("no roots from the client: %s", error)
        return None
    for root in answer.roots:
        parts = urlsplit(str(root.uri))
        if parts.scheme == "file" and parts.netloc in ("", "localhost"):
            return unquote(parts.path, errors="surrogateescape")
    return None


MAX_STREAMS = 16
"""Largest number of streams of one client; one is enough."""

MAX_SESSIONS = 64
"""Largest number of clients behind one endpoint to keep, those that listed last."""

_SESSION_HEADER = "mcp-session-id"

_CHANGED = JSONRPCNotification(jsonrpc="2.0", method="notifications/tools/list_changed")

TELLING_TIMEOUT_S = 2.0
"""Time to notify one of them: it may not read, and the others wait meanwhile."""

View = tuple[tuple[Environment, ...], bool]
"""Environments to run code in, and whether there are programs of the host to start."""

Subscribe = Callable[[Callable[[], None]], Callable[[], None]]
"""Like `nsmd.environments.catalog.Catalog.subscribe`."""

Send = Callable[[JSONRPCMessage], Awaitable[None]]


class ListedTools:
    """List of tools that each client got."""

    def __init__(self, view: Callable[[ClientIdentity], View]) -> None:
        self._view = view
        self._bus = InMemorySubscriptionBus()
        self.listen = ListenHandler(
            self._bus, max_subscriptions=MAX_STREAMS, max_buffered_events=MAX_STREAMS
        )
        self._client: ClientIdentity | None = None
        self._told: View = (), False
        self._shook_hands = False
        self._sessions: OrderedDict[str, ServerSession] = OrderedDict()
        self._changed = trio.Event()

    def remember(self, ctx: Context, client: ClientIdentity, view: View) -> None:
        """Remember what the client got."""
        if call_of(ctx) is not None or self._client is None:
            self._client, self._told = client, view
        # Otherwise there are other clients, who did not get the same.
        if ctx.protocol_version in MODERN_PROTOCOL_VERSIONS:
            return
        self._shook_hands = True
        if call_of(ctx) is None:
            self._note_session(ctx)

    async def announce(self, subscribe: Sequence[Subscribe], send: Send | None) -> None:
        """Notify the client whenever its list would be another one now; until cancelled.

        Args:
            send: sends a message; waits while the client does not read. None if the endpoint has
                several clients, which get notices by their sessions.
        """
        self._changed = trio.Event()
        with ExitStack() as stack:
            for each in subscribe:
                stack.callback(each(self._note_change))
            while True:
                await self._changed.wait()
                self._changed = trio.Event()
                if self._client is None:
                    continue
                view = self._view(self._client)
                if view == self._told:
                    continue
                self._told = view
                await self._bus.publish(ToolsListChanged())
                if send is None:
                    await self._tell_sessions()
                elif self._shook_hands:
                    await send(_CHANGED)

    def _note_change(self) -> None:
        self._changed.set()

    def _note_session(self, ctx: Context) -> None:
        headers = getattr(ctx.request, "headers", None)
        known = headers.get(_SESSION_HEADER) if headers is not None else None
        if known is not None:
            self._sessions[known] = ctx.session
            self._sessions.move_to_end(known)
            if len(self._sessions) > MAX_SESSIONS:
                self._sessions.popitem(last=False)

    async def _tell_sessions(self) -> None:
        for known, session in list(self._sessions.items()):
            with trio.move_on_after(TELLING_TIMEOUT_S) as told:
                await session.send_tool_list_changed()
            if told.cancelled_caught:
                self._sessions.pop(known, None)
