"""Directories that a client says it works in. HEAVY: imports `mcp`."""

from __future__ import annotations

import logging
from urllib.parse import unquote, urlsplit

import trio
from mcp.shared.exceptions import MCPError
from mcp_types import ListRootsRequest, ListRootsResult
from pydantic import ValidationError

from nsmd.mcp.callers import Context

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
