"""Outcomes of calls, awaited while the client gets progress. HEAVY: imports `mcp`."""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from typing import TypeVar

import trio

from nsm.wire.errors import InternalError, NsmError
from nsmd.environments.pending import patiently
from nsmd.mcp import bridge_schema
from nsmd.mcp.callers import Context, report, taken_back
from nsmd.mcp.interfaces import Handle, RunHandle
from nsmd.mcp.output_lines import LineFeed
from nsmd.mcp.progress import ProgressFeed
from nsmd.mcp.render import ToolReply, render_error

log = logging.getLogger(__name__)

T = TypeVar("T")


async def submit_patiently(
    submit: Callable[[], RunHandle], ctx: Context, feed: ProgressFeed | None
) -> RunHandle:
    """Submit a call when its environment is ready."""
    if feed is None:
        return await patiently(submit)
    execution: RunHandle | NsmError
    async with trio.open_nursery() as nursery:
        nursery.start_soon(feed.run, partial(report, ctx))
        try:
            execution = await patiently(submit)
        except NsmError as error:
            execution = error  # raised in a nursery, it would be in a group
        nursery.cancel_scope.cancel()
    if isinstance(execution, NsmError):
        raise execution
    return execution


async def outcome_of(call: Handle[T], ctx: Context, feed: ProgressFeed | LineFeed | None) -> T:
    """Wait for the outcome of a call, and report its output meanwhile.

    Cancellation: if the client cancelled the call, it is interrupted; otherwise the client is gone,
    and the call is abandoned.
    """
    outcome: T | NsmError | None = None
    try:
        if feed is None:
            outcome = await _value_of(call)
        else:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(feed.run, partial(report, ctx))
                outcome = await _value_of(call)
                if isinstance(feed, LineFeed):
                    feed.end()  # lines that wait are reported first
                else:
                    nursery.cancel_scope.cancel()
    finally:
        if outcome is None:
            if taken_back(ctx):
                call.interrupt()
            else:
                call.abandon()
    assert outcome is not None
    if isinstance(outcome, NsmError):
        raise outcome
    return outcome


async def _value_of(call: Handle[T]) -> T | NsmError:
    """Return the outcome, with errors as values: raised in a nursery, they would be in a group."""
    try:
        return await call.wait()
    except NsmError as error:
        return error


def render_failure(error: Exception, tool: str) -> ToolReply:
    """Render an error for the model; for a bug of ours, say that it is not the model's fault.

    Args:
        error: error of one call.
        tool: tool that was called.
    """
    if not isinstance(error, NsmError):
        log.error("a call of %s failed", tool, exc_info=error)
        error = InternalError(
            "nsm failed to carry out the call.",
            hint=f"Whether {_subject(tool)} ran is unknown. The supervisor's log has the details.",
        )
    return render_error(error)


def _subject(tool: str) -> str:
    return "the program" if tool == bridge_schema.EXECUTE else "the code"
