"""Operations on a session's changes to a project in an overlay.

Paths are bytes, as names of files are; see `nsm.wire.changes` for the rows.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, cast

import trio

from nsm.wire.errors import BadRequestError
from nsmd.control import arguments
from nsmd.control.call import Call

if TYPE_CHECKING:
    from nsmd.sessions.changes import AgreedChange, Change, PathState, RefusedChange

MAX_PATH_BYTES = 4096
ROWS_AT_ONCE = 500
"""Rows in one event, for a size of some ten thousand bytes."""


async def changes(call: Call) -> dict[str, Any]:
    """Send all changes of a session as events."""
    session, below = call.target(), _paths(call)
    with trio.CancelScope() as scope:
        call.on_cancel(scope.cancel)
        found = await call.services.review().changes(session, below)
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


async def change(call: Call) -> dict[str, Any]:
    """Send the contents of one path in the session and on the host."""
    path = _path(arguments.data(call.args, "path"))
    with trio.CancelScope() as scope:
        call.on_cancel(scope.cancel)
        contents = await call.services.review().contents(call.target(), path)
        return {
            "change": None if contents.change is None else change_to_wire(contents.change),
            "before": contents.before,
            "after": contents.after,
        }
    raise _cancelled()


async def apply(call: Call) -> dict[str, Any]:
    """Apply changes to the host."""
    wanted = [_wanted(row) for row in _list(call, "changes")]
    made, refused = await call.services.review().apply(
        call.target(), wanted, force=arguments.flag(call.args, "force")
    )
    return {"applied": made, "refused": _refused(refused)}


async def discard(call: Call) -> dict[str, Any]:
    """Make a session's files the same as the host's again."""
    gone, refused = await call.services.review().discard(call.target(), _paths(call))
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


def _list(call: Call, key: str) -> list[object]:
    value: object = call.args.get(key, [])
    if not isinstance(value, list):
        raise BadRequestError(f"Argument {key!r} is {value!r:.80}, not a list.")
    return cast("list[object]", value)


def _paths(call: Call) -> list[str]:
    return [_path(each) for each in _list(call, "paths")]


def _path(given: object) -> str:
    """Read a path below the project, in the form of `os.fsdecode`."""
    if isinstance(given, bytes) and 0 < len(given) <= MAX_PATH_BYTES and b"\0" not in given:
        components = given.split(b"/")
        if not {b"", b".", b".."} & set(components):
            return os.fsdecode(given)
    raise BadRequestError(
        f"{given!r:.80} is not a path below the project, in bytes.",
        hint="It is relative to the project, without '.', '..' and empty parts.",
    )


def _wanted(row: object) -> AgreedChange:
    if not isinstance(row, dict):
        raise BadRequestError(f"A change is {row!r:.80}, not a map.")
    from nsmd.sessions.changes import AgreedChange  # noqa: PLC0415  # few supervisors need it

    fields = cast("dict[str, Any]", row)
    return AgreedChange(
        path=_path(fields.get("path")),
        before=arguments.optional_text(fields, "before"),
        after=arguments.optional_text(fields, "after"),
        risky=arguments.flag(fields, "risky"),
    )
