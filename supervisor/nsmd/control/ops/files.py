"""Operations on files of a session. A handle belongs to the connection that opened it."""

from __future__ import annotations

from typing import Any

import trio

from nsm.wire.errors import BadRequestError
from nsm.wire.sessions import PIECE_BYTES
from nsmd.control import arguments
from nsmd.control.call import Call
from nsmd.sessions.files import Mode, Transfer, directory

MAX_PATH_CHARS = 4096
"""Longest path that Linux accepts (PATH_MAX)."""


async def file_open(call: Call) -> dict[str, Any]:
    """Open a file to read or write."""
    session, path = call.target(), _path(call)
    permissions = arguments.optional_count(call.args, "permissions")
    if permissions is not None and permissions > 0o777:
        raise BadRequestError(f"Argument 'permissions' is {permissions:#o}, not 0 to 0o777.")
    overwrite = "overwrite" not in call.args or arguments.flag(call.args, "overwrite")
    with trio.CancelScope() as scope:
        call.on_cancel(scope.cancel)
        handle, transfer = await call.files.open(
            session,
            path,
            _mode(call),
            permissions=permissions,
            overwrite=overwrite,
            size=arguments.optional_count(call.args, "size") or 0,
        )
        info = transfer.info
        return {
            "file": handle,
            "path": info.path,
            "size": info.size,
            "permissions": info.permissions,
        }
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
    closed = await _transfer(call).close(keep=arguments.flag(call.args, "keep"))
    return {"path": closed.path, "size": closed.size}


async def file_list(call: Call) -> dict[str, Any]:
    """List a directory."""
    return await _directory(call, make=False)


async def file_mkdir(call: Call) -> dict[str, Any]:
    """Make a directory if there is none."""
    return await _directory(call, make=True)


async def _directory(call: Call, *, make: bool) -> dict[str, Any]:
    session, path = call.target(), _path(call)
    with trio.CancelScope() as scope:
        call.on_cancel(scope.cancel)
        found = await directory(session, path, make=make)
        told: dict[str, Any] = {"path": found.path, "free_bytes": found.free_bytes}
        if not make:
            entries = [entry._asdict() for entry in found.entries]
            told |= {"entries": entries, "whole": found.whole}
        return told
    raise BadRequestError("The request was cancelled.")


def _path(call: Call) -> str:
    path = arguments.text(call.args, "path")
    if not path or len(path) > MAX_PATH_CHARS or "\0" in path:
        raise BadRequestError(
            f"Argument 'path' is {path!r:.80}, not 1 to {MAX_PATH_CHARS} characters without NUL."
        )
    return path


def _transfer(call: Call) -> Transfer:
    handle = arguments.optional_count(call.args, "file")
    if handle is None:
        raise BadRequestError("Argument 'file' is required.", hint="It comes from `file_open`.")
    return call.files.get(handle)


def _mode(call: Call) -> Mode:
    match arguments.text(call.args, "mode"):
        case "read":
            return "read"
        case "write":
            return "write"
        case other:
            raise BadRequestError(f"Argument 'mode' is {other!r:.40}, not 'read' or 'write'.")
