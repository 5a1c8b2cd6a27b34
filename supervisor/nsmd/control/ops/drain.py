"""Operation `drain`: begin nothing new, and wait until nothing runs."""

from __future__ import annotations

import math
from typing import Any

import trio

from nsm.wire.errors import BadRequestError
from nsmd.control import arguments
from nsmd.control.call import Call

TELL_INTERVAL_S = 1.0
"""Interval of progress events, so that a waiting client sees that time passes. Executions that
finish are reported no more often.
"""


async def drain(call: Call) -> dict[str, Any]:
    """Drain, and report progress until nothing runs; or accept new work again.

    The drain belongs to the supervisor: it continues if the client cancels or disconnects.
    """
    draining = call.services.draining
    if arguments.flag(call.args, "cancel"):
        cancelled = draining.cancel()
        left = len(call.services.run_service.unfinished())
        return {
            "drained": False,
            "left": left,
            "interrupted": 0,
            "cancelled": cancelled,
            "sessions": _sessions(call),
        }
    timeout_s = arguments.optional_number(call.args, "timeout_s")
    if timeout_s is not None and timeout_s < 0:
        raise BadRequestError("`timeout_s` must be 0 or more.")
    it = draining.begin(f"by {call.client}", timeout_s=math.inf if timeout_s is None else timeout_s)
    async with trio.open_nursery() as nursery:
        call.on_cancel(nursery.cancel_scope.cancel)
        while it.active:
            change = it.next_change
            await call.emit("progress", dict(it.report()))
            if not it.active:
                break
            with trio.move_on_after(TELL_INTERVAL_S):
                await change.wait()
    report = it.report()
    return {
        **{name: report[name] for name in ("drained", "left", "interrupted")},
        "cancelled": it.cancelled,
        "sessions": _sessions(call),
    }


def _sessions(call: Call) -> int:
    return len(call.services.run_service.live_sessions())
