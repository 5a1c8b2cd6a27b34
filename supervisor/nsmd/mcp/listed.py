"""List of tools that a client got, and notices about changes. HEAVY: imports `mcp`.

A client that has never listed the tools learns of everything when it does. Any other client gets
one notice for all changes until the notice is sent: in the handshake revisions as a notification,
in the handshake-free one on the streams that it opened (`subscriptions/listen`).
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Awaitable, Callable, Sequence
from contextlib import ExitStack

import trio
from mcp.server.session import ServerSession
from mcp.server.subscriptions import InMemorySubscriptionBus, ListenHandler, ToolsListChanged
from mcp_types import JSONRPCMessage, JSONRPCNotification
from mcp_types.version import MODERN_PROTOCOL_VERSIONS

from nsmd.mcp.callers import Context, call_of
from nsmd.model.values import ClientIdentity, Environment

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
"""Like `nsmd.mcp.interfaces.Runner.subscribe`."""

Send = Callable[[JSONRPCMessage], Awaitable[None]]


class ListedTools:
    """List of tools that each client got.

    Args:
        view: returns what a client would get now.

    Attributes:
        listen: the handler of `subscriptions/listen`.
    """

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

    def note(self, ctx: Context, client: ClientIdentity, view: View) -> None:
        """Note what the client got."""
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
            subscribe: subscriptions to everything that changes its list.
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
