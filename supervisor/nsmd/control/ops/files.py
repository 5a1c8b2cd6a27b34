"""Operations on files of a session. A handle belongs to the connection that opened it."""

from __future__ import annotations

import base64
from typing import Any

import trio

from nsm.wire.errors import BadRequestError
from nsm.wire.files import PIECE_BYTES
from nsmd.agent_link.file_frames import (
    DetailedFile,
    FileChange,
    FileClosedFrame,
    FileContentFrame,
    FileDirectoryFrame,
    FileEntriesFrame,
)
from nsmd.control import arguments
from nsmd.control.call import Call
from nsmd.sessions.files import TREE_TIMEOUT_S, Mode, Transfer, ask

MAX_PATH_CHARS = 4096
"""Longest path that Linux accepts (PATH_MAX)."""

MAX_PAGE = 1000
"""Largest number of entries of a directory in one answer of `file_entries`."""


MAX_OFFSET = 2**53

MAX_WAIT_S = 60.0
"""Longest wait of one `file_events`."""


async def file_open(call: Call) -> dict[str, Any]:
    """Open a file to read or write, or a directory to archive or unpack."""
    session, path = call.target(), _path(call)
    with trio.CancelScope() as scope:
        call.on_cancel(scope.cancel)
        handle, transfer, descriptor = await call.files.open(
            session,
            path,
            _mode(call),
            permissions=_permissions(call),
            overwrite=_overwrite(call),
            size=arguments.optional_count(call.args, "size") or 0,
            direct=arguments.flag(call.args, "descriptor"),
        )
        info = transfer.info
        answer: dict[str, Any] = {
            "file": handle,
            "path": _on_wire(info.path),
            "size": info.size,
            "permissions": info.permissions,
        }
        if descriptor is not None:
            call.attach(descriptor)
            answer["descriptor"] = True
        elif transfer.streams:
            answer["streams"] = True
        return answer
    raise BadRequestError("The request was cancelled; no file is open.")


async def file_read(call: Call) -> dict[str, Any]:
    """Read the next bytes of a file."""
    count = arguments.optional_count(call.args, "bytes")
    if count is None:
        count = PIECE_BYTES
    if not 1 <= count <= PIECE_BYTES:
        raise BadRequestError(f"Argument 'bytes' is {count}, not 1 to {PIECE_BYTES}.")
    piece = await _transfer(call).read(count)
    return {"data": piece.data, "eof": piece.eof}


async def file_write(call: Call) -> dict[str, Any]:
    """Append bytes to a file."""
    data = arguments.data(call.args, "data")
    if len(data) > PIECE_BYTES:
        raise BadRequestError(
            f"Argument 'data' has {len(data)} bytes; at most {PIECE_BYTES} are taken at once."
        )
    return {"size": await _transfer(call).write(data)}


async def file_close(call: Call) -> dict[str, Any]:
    """Close a file; a written one appears only if it is kept."""
    return _closed(await _transfer(call).close(keep=arguments.flag(call.args, "keep")))


def _closed(closed: FileClosedFrame) -> dict[str, Any]:
    answer: dict[str, Any] = {"path": _on_wire(closed.path), "size": closed.size}
    if closed.permissions is not None:
        answer["permissions"] = closed.permissions
    if closed.entries or closed.left_out:
        answer["entries"] = closed.entries
        answer["left_out"] = closed.left_out
        answer["skipped"] = [{"path": _on_wire(path), "why": why} for path, why in closed.skipped]
    return answer


async def file_get(call: Call) -> dict[str, Any]:
    """Read a file, or a part of it, at once."""
    fields = {
        "offset": _bounded(call, "offset", MAX_OFFSET, 0),
        "bytes": _bounded(call, "bytes", PIECE_BYTES, PIECE_BYTES),
    }
    found = await ask(call.target(), "file_get", _path(call), FileContentFrame, fields=fields)
    return {
        "path": _on_wire(found.path),
        "size": found.size,
        "permissions": found.permissions,
        "data": found.data,
        "eof": found.eof,
    }


async def file_put(call: Call) -> dict[str, Any]:
    """Write a file at once, or add to one."""
    data = arguments.data(call.args, "data")
    if len(data) > PIECE_BYTES:
        raise BadRequestError(
            f"Argument 'data' has {len(data)} bytes; at most {PIECE_BYTES} are taken at once."
        )
    fields: dict[str, object] = {"data": base64.b64encode(data).decode()}
    fields |= {name: arguments.flag(call.args, name) for name in ("append", "parents")}
    if (permissions := _permissions(call)) is not None:
        fields["permissions"] = permissions
    fields["overwrite"] = _overwrite(call)
    return _closed(
        await ask(call.target(), "file_put", _path(call), FileClosedFrame, fields=fields)
    )


async def file_stat(call: Call) -> dict[str, Any]:
    """Say what a path leads to."""
    follow = arguments.flag(call.args, "follow")
    found = await ask(
        call.target(), "file_stat", _path(call), FileEntriesFrame, fields={"follow": follow}
    )
    if len(found.entries) != 1:
        raise call.target().distrust("a file was told to be several")
    entry: dict[str, Any] = {"path": _on_wire(found.path), **_entry(found.entries[0])}
    if found.target is not None:
        entry["target"] = _on_wire(found.target)
    return entry


async def file_entries(call: Call) -> dict[str, Any]:
    """List a part of a directory, with what stat(2) says of each entry."""
    after = call.args.get("after", "")
    fields = {
        "after": _text_or_bytes("after", after) if after else "",
        "count": max(1, _bounded(call, "count", MAX_PAGE, MAX_PAGE)),
    }
    found = await ask(call.target(), "file_entries", _path(call), FileEntriesFrame, fields=fields)
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


async def file_remove(call: Call) -> dict[str, Any]:
    """Remove a file, an empty directory, or a directory with all that is in it."""
    recursive = arguments.flag(call.args, "recursive")
    return _closed(
        await ask(
            call.target(),
            "file_remove",
            _path(call),
            FileClosedFrame,
            timeout_s=TREE_TIMEOUT_S,
            fields={"recursive": recursive},
        )
    )


async def file_rename(call: Call) -> dict[str, Any]:
    """Give a file or a directory another name."""
    fields = {"to": _path(call, "to"), "overwrite": _overwrite(call)}
    return _closed(
        await ask(call.target(), "file_rename", _path(call), FileClosedFrame, fields=fields)
    )


async def file_mkdir(call: Call) -> dict[str, Any]:
    """Make a directory if there is none."""
    fields = {"parents": arguments.flag(call.args, "parents")}
    found = await ask(call.target(), "file_mkdir", _path(call), FileDirectoryFrame, fields=fields)
    return {"path": _on_wire(found.path), "free_bytes": found.free_bytes}


async def file_watch(call: Call) -> dict[str, Any]:
    """Begin to watch a path."""
    recursive = arguments.flag(call.args, "recursive")
    handle, watch = await call.watches.open(call.target(), _path(call), recursive=recursive)
    return {"watch": handle, "path": _on_wire(watch.path)}


async def file_events(call: Call) -> dict[str, Any]:
    """Say what has happened to a path that is watched, or wait for it."""
    watch = call.watches.get(_handle(call, "watch"))
    wait_s = arguments.wait_s(call.args, MAX_WAIT_S)
    with trio.CancelScope() as scope:
        call.on_cancel(scope.cancel)
        events, overflow, ended = await watch.next(wait_s)
        return {
            "events": [_change(event) for event in events],
            "overflow": overflow,
            "ended": ended,
        }
    return {"events": [], "overflow": False, "ended": False}


def _change(event: FileChange) -> dict[str, Any]:
    told = {"kind": event.kind, "path": _on_wire(event.path)}
    return told | ({"to": _on_wire(event.to)} if event.to else {})


async def file_unwatch(call: Call) -> dict[str, Any]:
    """Watch a path no longer."""
    call.watches.close(_handle(call, "watch"))
    return {}


def _handle(call: Call, name: str) -> int:
    handle = arguments.optional_count(call.args, name)
    if handle is None:
        raise BadRequestError(f"Argument {name!r} is required.", hint="It is a number.")
    return handle


def _path(call: Call, name: str = "path") -> str:
    """A path of the session: text, or bytes if it is not UTF-8. Lone surrogates stand for those."""
    return _text_or_bytes(name, call.args.get(name))


def _text_or_bytes(name: str, value: object) -> str:
    path = value.decode("utf-8", "surrogateescape") if isinstance(value, bytes) else value
    if not isinstance(path, str) or not 0 < len(path) <= MAX_PATH_CHARS or "\0" in path:
        raise BadRequestError(
            f"Argument {name!r} is {value!r:.80}, not 1 to {MAX_PATH_CHARS} characters or bytes "
            "without NUL."
        )
    return path


def _on_wire(path: str) -> str | bytes:
    """A path or name as clients get it: bytes if it is not UTF-8."""
    try:
        path.encode()
    except UnicodeEncodeError:
        return path.encode("utf-8", "surrogateescape")
    return path


def _permissions(call: Call) -> int | None:
    permissions = arguments.optional_count(call.args, "permissions")
    if permissions is not None and permissions > 0o777:
        raise BadRequestError(f"Argument 'permissions' is {permissions:#o}, not 0 to 0o777.")
    return permissions


def _overwrite(call: Call) -> bool:
    return "overwrite" not in call.args or arguments.flag(call.args, "overwrite")


def _bounded(call: Call, name: str, most: int, default: int) -> int:
    count = arguments.optional_count(call.args, name)
    if count is None:
        return default
    if count > most:
        raise BadRequestError(f"Argument {name!r} is {count}, not 0 to {most}.")
    return count


def _transfer(call: Call) -> Transfer:
    handle = arguments.optional_count(call.args, "file")
    if handle is None:
        raise BadRequestError("Argument 'file' is required.", hint="It comes from `file_open`.")
    return call.files.get(handle)


def _mode(call: Call) -> Mode:
    match arguments.text(call.args, "mode"):
        case "read" | "write" | "archive" | "unpack" as mode:
            return mode
        case other:
            raise BadRequestError(
                f"Argument 'mode' is {other!r:.40}, not 'read', 'write', 'archive' or 'unpack'."
            )
