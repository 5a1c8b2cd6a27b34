"""Operation that forks a running session."""

from __future__ import annotations

from typing import Any

from nsmd.control import arguments
from nsmd.control.call import Call
from nsmd.sessions.session import Session


async def fork(call: Call) -> dict[str, Any]:
    """Fork a live session once or several times; the forks have names of their own.

    If the call was sent before, the forks that are there belong to the answer.
    """
    run_service, original = call.services.run_service, call.target()
    wanted = arguments.texts(call.args, "names")
    count = arguments.optional_count(call.args, "count")
    if count is None:
        count = max(1, len(wanted))
    call_id = arguments.optional_text(call.args, "execution_id") or ""
    forks: list[Session] = []
    if call_id and arguments.flag(call.args, "again") and original.tenancy is not None:
        forks = run_service.session_manager.index.made_by(original.tenancy.scope, call_id)
        # In the order in which they were made, which a new supervisor has not kept.
        places = {name: place for place, name in enumerate(wanted)}
        forks.sort(
            key=lambda one: (places.get(one.name or "", count), len(one.name or ""), one.name)
        )
    answer: dict[str, Any] = {}
    if len(forks) < max(1, count):
        there = {each.name for each in forks}
        made = await run_service.fork(
            original,
            [name for name in wanted if name not in there],
            count - len(forks),
            client=call.client,
            made_by=call_id,
        )
        forks += made.sessions
        answer = {
            "closed": list(made.report.closed),
            "copied_bytes": made.report.copied_bytes,
            "stood_s": made.report.stood_s,
        }
    return {"forks": [{"id": each.id, "name": each.name} for each in forks], **answer}
