"""Identity of a caller from the SDK's context of a request. HEAVY: imports `mcp`.

Behind a shim, a request's own context is the router's `McpRequest`. Other transports have another
context: their requests have no numbers, and if a handler is cancelled, the client cancelled the
request, unless the transport knows better.
"""

from __future__ import annotations

from typing import Any

from mcp.server.context import ServerRequestContext
from mcp.shared.jsonrpc_dispatcher import progress_token_from_params

from nsmd.mcp.interfaces import TAKEN_BACK
from nsmd.mcp.line_numbers import Number
from nsmd.mcp.router import McpRequest

Context = ServerRequestContext[Any, Any]

_MAX_CLIENT_CHARS = 64


def call_of(ctx: Context) -> McpRequest | None:
    """The router's own context of a request."""
    return ctx.request if isinstance(ctx.request, McpRequest) else None


def number_of(ctx: Context) -> Number | None:
    """Number with which a shim would repeat the request."""
    call = call_of(ctx)
    return None if call is None else call.number


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


def client_name(ctx: Context) -> str:
    """Return the name that the client gives itself."""
    params = ctx.session.client_params
    given = params.client_info.name if params is not None else ""
    # It appears in terminals, logs and names of scopes.
    name = "".join(c if c.isalnum() or c in "._-" else "-" for c in given[:_MAX_CLIENT_CHARS])
    return name.strip("-") or "unknown"
