"""Operation that forks a running session."""

from __future__ import annotations

from typing import Any

from nsm.dataclass import replace
from nsm.wire.errors import BadRequestError
from nsm.wire.live import FORKED_FROM
from nsmd.control import arguments
from nsmd.control.call import Call
from nsmd.model import names

MAX_FORKS = 16
"""Forks made at once: each takes 10 to 20 ms, for which the original stands still."""


async def fork(call: Call) -> dict[str, Any]:
    """Fork a live session once or several times; the forks have names of their own."""
    original = call.target()
    tenancy = original.tenancy
    assert tenancy is not None, "a target belongs to somebody"
    run_service = call.services.run_service
    wanted = arguments.texts(call.args, "names")
    count = arguments.optional_count(call.args, "count") or max(1, len(wanted))
    if not 1 <= count <= MAX_FORKS:
        raise BadRequestError(f"{count} forks are too many; at once it may be {MAX_FORKS}.")
    if len(wanted) > count:
        raise BadRequestError(f"{len(wanted)} names are too many for {count} forks.")
    taken = set(wanted)
    if len(taken) < len(wanted):
        raise BadRequestError("Two of the forks' names are the same.")
    for name in wanted:
        names.check(name)
        if run_service.named(tenancy.scope, name) is not None:
            raise BadRequestError(
                f"There is a session {name!r} already.", hint="Choose another name, or none."
            )
    while len(wanted) < count:
        wanted.append(
            names.fresh(
                original.name or original.spec.environment.name,
                lambda name: name in taken or run_service.named(tenancy.scope, name) is not None,
            )
        )
        taken.add(wanted[-1])
    labels = tuple(sorted({**dict(tenancy.labels), FORKED_FROM: original.id}.items()))
    of_forks = replace(tenancy, client=call.client, labels=labels)
    made = await run_service.session_manager.fork(
        original, [replace(of_forks, name=name) for name in wanted]
    )
    return {
        "forks": [{"id": each.id, "name": each.name} for each in made.sessions],
        "closed": list(made.report.closed),
        "copied_bytes": made.report.copied_bytes,
        "stood_s": made.report.stood_s,
    }
