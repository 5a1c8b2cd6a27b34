"""Files of a sandbox.

Directories and watches are `filesystem.Filesystem` of E2B's, contents are ``/files``, up and down:
as they are, or in a form (multipart/form-data, RFC 7578).
"""

from __future__ import annotations

import os
import secrets
import stat
import zlib
from contextlib import suppress
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, Any

from python_multipart.multipart import FormParser, parse_options_header

from nsm.integrations.e2b.access import USER
from nsm.integrations.e2b.errors import RefusalError, refusal_of
from nsm.integrations.e2b.requests import ConnectStream, message_of, number, text
from nsm.wire.errors import FileError, NsmError
from nsm.wire.operation import PIECE_BYTES

if TYPE_CHECKING:
    from python_multipart.multipart import File as FormFile

    from nsm import AsyncChangeWatch
    from nsm.integrations.e2b.requests import HttpRequest
    from nsm.integrations.e2b.sandboxes import E2bSandbox
    from nsm.wire.files import FileEntry, FileEvent

KEEPALIVE_S = 30.0
"""Time without events after which a client is told that its stream is alive."""

MAX_ENTRIES = 100_000
"""Entries of one list."""

MAX_UPLOAD_BYTES = 128 * 1024 * 1024
"""Largest upload: it is in memory for a while."""

MAX_FILES = 1000
"""Files of one form."""

_EVENTS = {
    "created": "EVENT_TYPE_CREATE",
    "modified": "EVENT_TYPE_WRITE",
    "removed": "EVENT_TYPE_REMOVE",
    "renamed": "EVENT_TYPE_RENAME",
    "attributes": "EVENT_TYPE_CHMOD",
}

_KINDS = {
    "file": (stat.S_IFREG, "FILE_TYPE_FILE"),
    "directory": (stat.S_IFDIR, "FILE_TYPE_DIRECTORY"),
    "link": (stat.S_IFLNK, "FILE_TYPE_SYMLINK"),
    "other": (0, "FILE_TYPE_UNSPECIFIED"),
}


async def call(sandbox: E2bSandbox, method: str, request: HttpRequest) -> None:
    """Answer a call."""
    asked = message_of(request)
    if method == "WatchDir":
        watch = await _watch(sandbox, asked)
        stream = ConnectStream(request)
        try:
            await request.while_there(partial(_stream, sandbox, watch, stream))
        finally:
            with suppress(NsmError):
                await watch.close()
        return
    await request.answer(200, await _unary(sandbox, method, asked))


async def _unary(sandbox: E2bSandbox, method: str, asked: dict[str, Any]) -> dict[str, Any]:
    match method:
        case "Stat":
            path = sandbox.path(text(asked, "path"))
            return {"entry": entry_of(await sandbox.files.stat(path, follow=False), path)}
        case "ListDir":
            path = sandbox.path(text(asked, "path", ""))
            return {"entries": await _list(sandbox, path, number(asked, "depth", 1))}
        case "MakeDir":
            path = sandbox.path(text(asked, "path"))
            if await sandbox.files.exists(path):
                raise RefusalError("already_exists", f"{path} exists already")
            await sandbox.files.mkdir(path, parents=True)
            return {"entry": entry_of(await sandbox.files.stat(path), path)}
        case "Move":
            source = sandbox.path(text(asked, "source"))
            target = sandbox.path(text(asked, "destination"))
            await sandbox.files.mkdir(os.path.dirname(target), parents=True)
            await sandbox.files.rename(source, target)
            return {"entry": entry_of(await sandbox.files.stat(target, follow=False), target)}
        case "Remove":
            path = sandbox.path(text(asked, "path"))
            try:
                await sandbox.files.remove(path, recursive=True)
            except FileError as error:
                if error.data.get("errno") != "ENOENT":  # as `rm -rf` has it
                    raise
            return {}
        case "CreateWatcher":
            watch_id = secrets.token_hex(8)
            sandbox.watches[watch_id] = await _watch(sandbox, asked)
            return {"watcherId": watch_id}
        case "GetWatcherEvents":
            watch = _known(sandbox, asked)
            events = (await watch.read()).events
            return {"events": [each for event in events for each in events_of(event)]}
        case "RemoveWatcher":
            await _known(sandbox, asked).close()
            sandbox.watches.pop(text(asked, "watcherId"), None)
            return {}
        case _:
            raise RefusalError("unimplemented", f"there is no filesystem.Filesystem/{method}")


async def _list(sandbox: E2bSandbox, path: str, depth: int) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    level = [path]
    for _ in range(max(1, depth)):
        below: list[str] = []
        for directory in level:
            for entry in await sandbox.files.list(directory):
                place = os.path.join(directory, entry.name)
                found.append(entry_of(entry, place))
                if entry.kind == "directory":
                    below.append(place)
            if len(found) > MAX_ENTRIES:
                raise RefusalError(
                    "resource_exhausted", f"there are more than {MAX_ENTRIES} entries in {path}"
                )
        level = below
    return found


async def _watch(sandbox: E2bSandbox, asked: dict[str, Any]) -> AsyncChangeWatch:
    path = sandbox.path(text(asked, "path"))
    if (await sandbox.files.stat(path)).kind != "directory":
        raise RefusalError("invalid_argument", f"{path} is not a directory")
    return await sandbox.files.watch(path, recursive=asked.get("recursive") is True)


async def _stream(sandbox: E2bSandbox, watch: AsyncChangeWatch, stream: ConnectStream) -> None:
    await stream.send({"start": {}})
    refusal = None
    try:
        while True:
            happened = await watch.read(KEEPALIVE_S)
            for event in happened.events:
                for each in events_of(event):
                    await stream.send({"filesystem": each})
            if happened.ended:
                break
            if not happened.events:
                await stream.send({"keepalive": {}})
    except NsmError as error:
        refusal = refusal_of(error, sandbox.id)
    await stream.end(refusal)


def _known(sandbox: E2bSandbox, asked: dict[str, Any]) -> AsyncChangeWatch:
    watch_id = text(asked, "watcherId")
    if watch_id not in sandbox.watches:
        raise RefusalError("not_found", f"there is no watcher {watch_id!r:.80}")
    return sandbox.watches[watch_id]


def events_of(event: FileEvent) -> list[dict[str, Any]]:
    """The events that clients know; a new name is a file that is created there."""
    if event.kind not in _EVENTS:
        return []
    events = [{"name": _shown(event.path), "type": _EVENTS[event.kind]}]
    if event.to is not None:
        events.append({"name": _shown(event.to), "type": "EVENT_TYPE_CREATE"})
    return events


def entry_of(entry: FileEntry, path: str) -> dict[str, Any]:
    """A file as clients know it."""
    bits, kind = _KINDS[entry.kind]
    return {
        "name": os.path.basename(_shown(path)) or "/",
        "type": kind,
        "path": _shown(path),
        "size": str(entry.size),  # protobuf's JSON has numbers of 64 bits as texts
        "mode": entry.permissions,
        "permissions": stat.filemode(bits | entry.permissions),
        "owner": USER,
        "group": USER,
        "modifiedTime": datetime.fromtimestamp(entry.modified_at, UTC).isoformat(),
        **({"symlinkTarget": _shown(entry.target)} if entry.target is not None else {}),
    }


def _shown(path: str) -> str:
    """A name as JSON can carry it: bytes that are not UTF-8 become U+FFFD."""
    return path.encode("utf-8", "surrogateescape").decode("utf-8", "replace")


async def answer(sandbox: E2bSandbox, request: HttpRequest) -> None:
    """Answer a request."""
    if request.query.get("username", "") not in ("", USER):
        raise RefusalError("unauthenticated", "a sandbox of nsm has one user, named user")
    match request.method:
        case "GET":
            await _download(sandbox, request)
        case "POST":
            await _upload(sandbox, request)
        case _:
            raise RefusalError("not_found", f"there is no {request.method} /files")


async def _download(sandbox: E2bSandbox, request: HttpRequest) -> None:
    path = _path(sandbox, request)
    entry = await sandbox.files.stat(path)
    if entry.kind == "directory":
        raise RefusalError("invalid_argument", f"{path} is a directory")
    piece = await sandbox.files.read(path, length=PIECE_BYTES)
    kind = {"content-type": "application/octet-stream"}
    if len(piece) < PIECE_BYTES:
        await request.begin(200, {**kind, "content-length": str(len(piece))})
        await request.end(piece)
        return
    # Without a length: the file may grow or shrink while it is read.
    await request.begin(200, kind)
    offset = 0
    while piece:
        await request.write(piece)
        offset += len(piece)
        piece = await sandbox.files.read(path, offset=offset, length=PIECE_BYTES)
    await request.end()


async def _upload(sandbox: E2bSandbox, request: HttpRequest) -> None:
    kind = request.headers.get("content-type", "")
    if any(name.startswith("x-metadata-") for name in request.headers):
        raise RefusalError("unimplemented", "nsm keeps no metadata of files")
    if kind.startswith("multipart/form-data"):
        found = files_of(kind, _body(request))
        if "path" in request.query:
            if len(found) != 1:
                raise RefusalError("invalid_argument", "one file was expected")
            found = [(_path(sandbox, request), found[0][1])]
    else:
        found = [(_path(sandbox, request), _body(request))]
    written: list[dict[str, str]] = []
    for name, data in found:
        if not name:
            raise RefusalError("invalid_argument", "a file has no path")
        path = sandbox.path(name)
        info = await sandbox.files.write(path, data, parents=True)
        shown = _shown(info.path)
        written.append({"name": os.path.basename(shown), "type": "file", "path": shown})
    await request.answer(200, written)


def _path(sandbox: E2bSandbox, request: HttpRequest) -> str:
    path = request.query.get("path", "")
    if not path or "\0" in path:
        raise RefusalError("invalid_argument", "path is missing")
    return sandbox.path(path)


def _body(request: HttpRequest) -> bytes:
    """The body, unpacked if it is compressed."""
    match request.headers.get("content-encoding", "").lower():
        case "" | "identity":
            return request.body
        case "gzip":
            unpack = zlib.decompressobj(wbits=31)
            try:
                data = unpack.decompress(request.body, MAX_UPLOAD_BYTES)
            except zlib.error:
                raise RefusalError("invalid_argument", "the body is not gzip") from None
            if not unpack.eof:
                raise RefusalError(
                    "invalid_argument",
                    f"the body ends too early, or has more than {MAX_UPLOAD_BYTES} bytes",
                )
            return data
        case other:
            raise RefusalError("invalid_argument", f"the body is compressed by {other!r:.40}")


def files_of(content_type: str, body: bytes) -> list[tuple[str, bytes]]:
    """Read the names and contents of the files in a form.

    Raises:
        RefusalError: it is no form, ends too early, or has too many parts.
    """
    kind, options = parse_options_header(content_type)
    boundary = options.get(b"boundary")
    if kind != b"multipart/form-data" or not boundary:
        raise RefusalError("invalid_argument", "the body is not a form with files")
    files: list[tuple[str, bytes]] = []
    ended: list[bool] = []

    def keep(field: bytes, name: bytes, data: bytes) -> None:
        if field == b"file":
            if len(files) >= MAX_FILES:
                raise RefusalError("resource_exhausted", f"a form has at most {MAX_FILES} files")
            files.append((name.decode("utf-8", "surrogateescape"), data))

    def keep_file(file: FormFile) -> None:
        file.file_object.seek(0)
        keep(file.field_name or b"", file.file_name or b"", file.file_object.read())

    try:
        parser = FormParser(
            "multipart/form-data",
            lambda field: keep(field.field_name or b"", b"", field.value or b""),
            keep_file,
            lambda: ended.append(True),
            boundary=boundary,
            config={"MAX_MEMORY_FILE_SIZE": MAX_UPLOAD_BYTES},
        )
        parser.write(body)
        parser.finalize()
    except ValueError:
        raise RefusalError("invalid_argument", "the form is damaged") from None
    if not ended:
        raise RefusalError("invalid_argument", "the form is not whole")
    return files
