"""Operations on a session's changes to a project in an overlay.

Paths are bytes, as names of files are; see `nsm.wire.changes` for the rows.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import trio

from nsm.wire.changes import AgreedRow
from nsm.wire.errors import BadRequestError
from nsmd.control.call import Call

if TYPE_CHECKING:
    from nsmd.sessions.changes import Change, PathState, RefusedChange

ROWS_AT_ONCE = 500
"""Rows in one event, for a size of some ten thousand bytes."""


async def changes(call: Call, target: str, paths: tuple[str, ...] = ()) -> dict[str, Any]:
    """Send all changes of a session as events."""
    session = call.find(target)
    with trio.CancelScope() as scope:
        call.on_cancel(scope.cancel)
        found = await call.services.review().changes(session, list(paths))
        for first in range(0, len(found), ROWS_AT_ONCE):
            rows = [change_to_wire(change) for change in found[first : first + ROWS_AT_ONCE]]
            await call.emit("changes", {"changes": rows})
        copy, project = session.project_copy, session.spec.project
        used = None if copy is None else os.fstatvfs(copy.changed)
        return {
            "session": session.id,
            "project": "" if project is None else project.path,
            "changes": len(found),
            "used_bytes": 0 if used is None else (used.f_blocks - used.f_bfree) * used.f_frsize,
            "size_bytes": 0 if used is None else used.f_blocks * used.f_frsize,
        }
    raise _cancelled()


async def change(call: Call, target: str, path: str) -> dict[str, Any]:
    """Send the contents of one path in the session and on the host."""
    with trio.CancelScope() as scope:
        call.on_cancel(scope.cancel)
        contents = await call.services.review().contents(call.find(target), path)
        return {
            "change": None if contents.change is None else change_to_wire(contents.change),
            "before": contents.before,
            "after": contents.after,
        }
    raise _cancelled()


async def apply(
    call: Call, target: str, changes: tuple[AgreedRow, ...] = (), *, force: bool = False
) -> dict[str, Any]:
    """Apply changes to the host."""
    from nsmd.sessions.changes import AgreedChange  # noqa: PLC0415  # few supervisors need it

    agreed = [AgreedChange(**row._asdict()) for row in changes]
    made, refused = await call.services.review().apply(call.find(target), agreed, force=force)
    return {"applied": made, "refused": _refused(refused)}


async def discard(call: Call, target: str, paths: tuple[str, ...] = ()) -> dict[str, Any]:
    """Make a session's files the same as the host's again."""
    gone, refused = await call.services.review().discard(call.find(target), list(paths))
    return {"discarded": gone, "refused": _refused(refused)}


def change_to_wire(change: Change) -> dict[str, Any]:
    """Make the row of a change."""
    return {
        "path": os.fsencode(change.path),
        "kind": change.kind,
        "before": _state(change.before),
        "after": _state(change.after),
        "conflict": change.conflict,
        "risk": change.risk,
        "problem": change.problem,
    }


def _state(state: PathState | None) -> dict[str, Any] | None:
    if state is None:
        return None
    return {"type": state.type, "mode": state.mode, "size": state.size, "token": state.token}


def _refused(refused: Sequence[RefusedChange]) -> list[dict[str, Any]]:
    return [{"path": os.fsencode(each.path), "why": each.why} for each in refused]


def _cancelled() -> BadRequestError:
    return BadRequestError("The request was cancelled.")
