"""What a client was told that there is to run in, and that it changed since. HEAVY: imports `mcp`.

A client that has never listed the tools learns of everything when it does. One that has is told
once for all that changed until the notice is on its way: of the handshake revisions with a
notification, of the handshake-free one on the streams that it opened (`subscriptions/listen`).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import trio
from mcp.server.context import ServerRequestContext
from mcp.server.subscriptions import InMemorySubscriptionBus, ListenHandler, ToolsListChanged
from mcp_types import JSONRPCMessage, JSONRPCNotification
from mcp_types.version import MODERN_PROTOCOL_VERSIONS

from nsmd.mcp.seam import Runner
from nsmd.values import Client, Environment

MAX_STREAMS = 16
"""That one client may have open; one is enough."""

_CHANGED = JSONRPCNotification(jsonrpc="2.0", method="notifications/tools/list_changed")


class Listed:
    """See the module.

    Attributes:
        listen: the handler of `subscriptions/listen`.
    """

    def __init__(self) -> None:
        self._bus = InMemorySubscriptionBus()
        self.listen = ListenHandler(
            self._bus, max_subscriptions=MAX_STREAMS, max_buffered_events=MAX_STREAMS
        )
        self._client: Client | None = None
        self._environments: tuple[Environment, ...] = ()
        self._shook_hands = False
        self._changed = trio.Event()

    def note(
        self,
        ctx: ServerRequestContext[Any, Any],
        client: Client,
        environments: Sequence[Environment],
    ) -> None:
        """The client is told of these environments."""
        self._client, self._environments = client, tuple(environments)
        if ctx.protocol_version not in MODERN_PROTOCOL_VERSIONS:
            self._shook_hands = True

    async def announce(
        self, runner: Runner, send: Callable[[JSONRPCMessage], Awaitable[None]]
    ) -> None:
        """Tell the client whenever it would be told something else now; until cancelled.

        Args:
            runner: knows the environments.
            send: takes a message; waits while the client does not read.
        """
        self._changed = trio.Event()
        unsubscribe = runner.subscribe(self._note_change)
        try:
            while True:
                await self._changed.wait()
                self._changed = trio.Event()
                if self._client is None:
                    continue
                environments = tuple(runner.environments(self._client))
                if environments == self._environments:
                    continue
                self._environments = environments
                await self._bus.publish(ToolsListChanged())
                if self._shook_hands:
                    await send(_CHANGED)
        finally:
            unsubscribe()

    def _note_change(self) -> None:
        self._changed.set()
