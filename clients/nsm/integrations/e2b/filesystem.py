"""Directories and watches of a sandbox (`filesystem.Filesystem` of E2B's)."""

from __future__ import annotations

import os
import secrets
import stat
from contextlib import suppress
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, Any

from nsm.integrations.e2b.access import USER
from nsm.integrations.e2b.connect import ConnectStream, message_of
from nsm.integrations.e2b.errors import RefusalError, refusal_of
from nsm.integrations.e2b.requests import number, text
from nsm.wire.errors import FileError, NsmError

if TYPE_CHECKING:
    from nsm import AsyncChangeWatch
    from nsm.integrations.e2b.requests import HttpRequest
    from nsm.integrations.e2b.sandboxes import E2bSandbox, Sandboxes
    from nsm.wire.files import FileEntry, FileEvent

KEEPALIVE_S = 30.0
"""Time without events after which a client is told that its stream is alive."""

MAX_ENTRIES = 100_000
"""Entries of one list."""

MAX_WATCHES = 64
"""Watches of one sandbox that clients ask for their events."""

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


class Filesystem:
    """Directories of the sandboxes of one key."""

    def __init__(self, sandboxes: Sandboxes) -> None:
        self._sandboxes = sandboxes

    def __repr__(self) -> str:
        return f"<Filesystem of {self._sandboxes}>"

    async def call(self, sandbox: E2bSandbox, method: str, request: HttpRequest) -> None:
        """Answer a call.

        Raises:
            RefusalError, NsmError: it cannot be carried out, and nothing was sent.
        """
        asked = message_of(request)
        if method == "WatchDir":
            watch = await self._watch(sandbox, asked)
            stream = ConnectStream(request)
            try:
                await request.while_there(partial(self._stream, sandbox, watch, stream))
            finally:
                with suppress(NsmError):
                    await watch.close()
            return
        await request.answer(200, await self._unary(sandbox, method, asked))

    async def _unary(
        self, sandbox: E2bSandbox, method: str, asked: dict[str, Any]
    ) -> dict[str, Any]:
        files = self._sandboxes.client.files(sandbox.id)
        match method:
            case "Stat":
                path = self._sandboxes.path(text(asked, "path"))
                return {"entry": entry_of(await files.stat(path, follow=False), path)}
            case "ListDir":
                path = self._sandboxes.path(text(asked, "path", ""))
                return {"entries": await self._list(sandbox, path, number(asked, "depth", 1))}
            case "MakeDir":
                path = self._sandboxes.path(text(asked, "path"))
                if await files.exists(path):
                    raise RefusalError("already_exists", f"{path} exists already")
                await files.mkdir(path, parents=True)
                return {"entry": entry_of(await files.stat(path), path)}
            case "Move":
                source = self._sandboxes.path(text(asked, "source"))
                target = self._sandboxes.path(text(asked, "destination"))
                await files.mkdir(os.path.dirname(target), parents=True)
                await files.rename(source, target)
                return {"entry": entry_of(await files.stat(target, follow=False), target)}
            case "Remove":
                path = self._sandboxes.path(text(asked, "path"))
                try:
                    await files.remove(path, recursive=True)
                except FileError as error:
                    if error.data.get("errno") != "ENOENT":  # as `rm -rf` has it
                        raise
                return {}
            case "CreateWatcher":
                async with sandbox.opening:  # so that nobody passes the limit meanwhile
                    if len(sandbox.watches) >= MAX_WATCHES:
                        raise RefusalError(
                            "resource_exhausted", f"at most {MAX_WATCHES} watches are kept"
                        )
                    watch_id = secrets.token_hex(8)
                    sandbox.watches[watch_id] = await self._watch(sandbox, asked)
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

    async def _list(self, sandbox: E2bSandbox, path: str, depth: int) -> list[dict[str, Any]]:
        files = self._sandboxes.client.files(sandbox.id)
        found: list[dict[str, Any]] = []
        level = [path]
        for _ in range(max(1, depth)):
            below: list[str] = []
            for directory in level:
                for entry in await files.list(directory):
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

    async def _watch(self, sandbox: E2bSandbox, asked: dict[str, Any]) -> AsyncChangeWatch:
        path = self._sandboxes.path(text(asked, "path"))
        files = self._sandboxes.client.files(sandbox.id)
        if (await files.stat(path)).kind != "directory":
            raise RefusalError("invalid_argument", f"{path} is not a directory")
        return await files.watch(path, recursive=asked.get("recursive") is True)

    async def _stream(
        self, sandbox: E2bSandbox, watch: AsyncChangeWatch, stream: ConnectStream
    ) -> None:
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
