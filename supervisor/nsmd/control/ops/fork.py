"""Operation that forks a running session."""

from __future__ import annotations

from typing import Any

from nsmd.control import arguments
from nsmd.control.call import Call


async def fork(call: Call) -> dict[str, Any]:
    """Fork a live session once or several times; the forks have names of their own."""
    wanted = arguments.texts(call.args, "names")
    count = arguments.optional_count(call.args, "count")
    if count is None:
        count = max(1, len(wanted))
    made = await call.services.run_service.live_forks.fork(
        call.target(), wanted, count, client=call.client
    )
    return {
        "forks": [{"id": each.id, "name": each.name} for each in made.sessions],
        "closed": list(made.report.closed),
        "copied_bytes": made.report.copied_bytes,
        "stood_s": made.report.stood_s,
    }
