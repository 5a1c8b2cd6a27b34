"""Operations on files of a session, and on its changes to a project in an overlay.

A handle belongs to the connection that opened it. Paths of changes are bytes, as names of files
are; see `nsm.wire.files` for the rows.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import trio

from nsm.wire.errors import BadRequestError
from nsm.wire.files import AgreedRow
from nsmd.control.call import Call

if TYPE_CHECKING:
    from nsmd.sessions.changes import Change, PathState, RefusedChange
import base64

from nsm.wire.files import MAX_PAGE, FilePiece
from nsm.wire.operation import PIECE_BYTES
from nsmd.agent_link.file_frames import (
    DetailedFile,
    FileChange,
    FileClosedFrame,
    FileContentFrame,
    FileDirectoryFrame,
    FileEntriesFrame,
)
from nsmd.sessions.files import TREE_TIMEOUT_S, Mode, ask

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


MAX_WAIT_S = 60.0
"""Longest wait of one `file_events`."""


async def file_open(
    call: Call,
    target: str,
    path: str,
    mode: Mode,
    *,
    permissions: int | None = None,
    overwrite: bool = True,
    size: int = 0,
    descriptor: bool = False,
) -> dict[str, Any]:
    """Open a file to read or write, or a directory to archive or unpack."""
    session = call.find(target)
    with trio.CancelScope() as scope:
        call.on_cancel(scope.cancel)
        handle, transfer, opened = await call.files.open(
            session,
            path,
            mode,
            permissions=permissions,
            overwrite=overwrite,
            size=size,
            direct=descriptor,
        )
        info = transfer.info
        answer: dict[str, Any] = {
            "file": handle,
            "path": _on_wire(info.path),
            "size": info.size,
            "permissions": info.permissions,
        }
        if opened is not None:
            call.attach(opened)
            answer["descriptor"] = True
        elif transfer.streams:
            answer["streams"] = True
        return answer
    raise BadRequestError("The request was cancelled; no file is open.")


async def file_read(
    call: Call,
    file: int,
    bytes: int = PIECE_BYTES,  # noqa: A002  # on the wire
) -> FilePiece:
    """Read the next bytes of a file."""
    piece = await call.files.get(file).read(bytes)
    return FilePiece(piece.data, piece.eof)


async def file_write(call: Call, file: int, data: bytes) -> int:
    """Append bytes to a file."""
    return await call.files.get(file).write(data)


async def file_close(call: Call, file: int, *, keep: bool = False) -> dict[str, Any]:
    """Close a file; a written one appears only if it is kept."""
    return _closed(await call.files.get(file).close(keep=keep))


def _closed(closed: FileClosedFrame) -> dict[str, Any]:
    answer: dict[str, Any] = {"path": _on_wire(closed.path), "size": closed.size}
    if closed.permissions is not None:
        answer["permissions"] = closed.permissions
    if closed.entries or closed.left_out:
        answer["entries"] = closed.entries
        answer["left_out"] = closed.left_out
        answer["skipped"] = [{"path": _on_wire(path), "why": why} for path, why in closed.skipped]
    return answer


async def file_get(
    call: Call,
    target: str,
    path: str,
    *,
    offset: int = 0,
    bytes: int = PIECE_BYTES,  # noqa: A002  # on the wire
) -> dict[str, Any]:
    """Read a file, or a part of it, at once."""
    fields = {"offset": offset, "bytes": bytes}
    found = await ask(call.find(target), "file_get", path, FileContentFrame, fields=fields)
    return {
        "path": _on_wire(found.path),
        "size": found.size,
        "permissions": found.permissions,
        "data": found.data,
        "eof": found.eof,
    }


async def file_put(
    call: Call,
    target: str,
    path: str,
    data: bytes,
    *,
    permissions: int | None = None,
    overwrite: bool = True,
    append: bool = False,
    parents: bool = False,
) -> dict[str, Any]:
    """Write a file at once, or add to one."""
    fields: dict[str, object] = {"data": base64.b64encode(data).decode()}
    fields |= {"append": append, "parents": parents, "overwrite": overwrite}
    if permissions is not None:
        fields["permissions"] = permissions
    return _closed(await ask(call.find(target), "file_put", path, FileClosedFrame, fields=fields))


async def file_stat(call: Call, target: str, path: str, *, follow: bool = False) -> dict[str, Any]:
    """Say what a path leads to."""
    session, fields = call.find(target), {"follow": follow}
    found = await ask(session, "file_stat", path, FileEntriesFrame, fields=fields)
    if len(found.entries) != 1:
        raise session.distrust("a file was told to be several")
    entry: dict[str, Any] = {"path": _on_wire(found.path), **_entry(found.entries[0])}
    if found.target is not None:
        entry["target"] = _on_wire(found.target)
    return entry


async def file_entries(
    call: Call, target: str, path: str, *, after: str = "", count: int = MAX_PAGE
) -> dict[str, Any]:
    """List a part of a directory, with what stat(2) says of each entry."""
    fields = {"after": after, "count": max(1, count)}
    found = await ask(call.find(target), "file_entries", path, FileEntriesFrame, fields=fields)
    return {
        "path": _on_wire(found.path),
        "entries": [_entry(entry) for entry in found.entries],
        "more": found.more,
        "free_bytes": found.free_bytes,
    }


def _entry(entry: DetailedFile) -> dict[str, Any]:
    return {
        "name": _on_wire(entry.name),
        "kind": entry.kind,
        "size": entry.size,
        "permissions": entry.permissions,
        "modified_at": entry.modified_us / 1e6,
    }


async def file_remove(
    call: Call, target: str, path: str, *, recursive: bool = False
) -> dict[str, Any]:
    """Remove a file, an empty directory, or a directory with all that is in it."""
    return _closed(
        await ask(
            call.find(target),
            "file_remove",
            path,
            FileClosedFrame,
            timeout_s=TREE_TIMEOUT_S,
            fields={"recursive": recursive},
        )
    )


async def file_rename(
    call: Call, target: str, path: str, to: str, *, overwrite: bool = True
) -> dict[str, Any]:
    """Give a file or a directory another name."""
    fields = {"to": to, "overwrite": overwrite}
    return _closed(
        await ask(call.find(target), "file_rename", path, FileClosedFrame, fields=fields)
    )


async def file_mkdir(
    call: Call, target: str, path: str, *, parents: bool = False
) -> dict[str, Any]:
    """Make a directory if there is none."""
    fields = {"parents": parents}
    found = await ask(call.find(target), "file_mkdir", path, FileDirectoryFrame, fields=fields)
    return {"path": _on_wire(found.path), "free_bytes": found.free_bytes}


async def file_watch(
    call: Call, target: str, path: str, *, recursive: bool = False
) -> dict[str, Any]:
    """Begin to watch a path."""
    handle, watch = await call.watches.open(call.find(target), path, recursive=recursive)
    return {"watch": handle, "path": _on_wire(watch.path)}


async def file_events(call: Call, watch: int, *, wait_s: float = 0.0) -> dict[str, Any]:
    """Say what has happened to a path that is watched, or wait for it."""
    watched = call.watches.get(watch)
    with trio.CancelScope() as scope:
        call.on_cancel(scope.cancel)
        events, overflow, ended = await watched.next(min(wait_s, MAX_WAIT_S))
        return {
            "events": [_change(event) for event in events],
            "overflow": overflow,
            "ended": ended,
        }
    return {"events": [], "overflow": False, "ended": False}


def _change(event: FileChange) -> dict[str, Any]:
    told = {"kind": event.kind, "path": _on_wire(event.path)}
    return told | ({"to": _on_wire(event.to)} if event.to else {})


async def file_unwatch(call: Call, watch: int) -> dict[str, Any]:
    """Watch a path no longer."""
    call.watches.close(watch)
    return {}


def _on_wire(path: str) -> str | bytes:
    """A path or name as clients get it: bytes if it is not UTF-8."""
    try:
        path.encode()
    except UnicodeEncodeError:
        return path.encode("utf-8", "surrogateescape")
    return path
