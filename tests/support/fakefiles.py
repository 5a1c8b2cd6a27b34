"""The files of a session without a session: handlers for `FakeSupervisor`."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

from nsm.wire.errors import FileError, FileTooLargeError

if TYPE_CHECKING:
    from fakesupervisor import Exchange, Handler


class FakeFiles:
    """Files by path, relative ones below /workspace; what is in `directories` is one.

    Attributes:
        files: path to data and permissions.
        largest_bytes: as `[session] max_file_mb`.
        full_bytes: where the file system is full.
        made_meanwhile: directories that are there when a file is to be put into its place.
        hold: path to what a read after the first piece waits for.
        opened: every path that was asked for.
    """

    def __init__(self) -> None:
        self.files: dict[str, tuple[bytes, int]] = {}
        self.directories = {"/", "/workspace", "/tmp"}
        self.largest_bytes = 64 * 1024 * 1024
        self.full_bytes = 64 * 1024 * 1024
        self.made_meanwhile: set[str] = set()
        self.hold: dict[str, threading.Event] = {}
        self.opened: list[str] = []
        self.reading = threading.Event()
        self._open: dict[int, _Open] = {}

    @property
    def open(self) -> int:
        """How many files are open."""
        return len(self._open)

    def handlers(self) -> dict[str, Handler]:
        return {
            "file_open": self._file_open,
            "file_read": self._file_read,
            "file_write": self._file_write,
            "file_close": self._file_close,
        }

    def _file_open(self, exchange: Exchange) -> dict[str, Any]:
        asked, path = _paths(exchange)
        self.opened.append(asked)
        if path in self.directories:
            raise FileError(f"{asked}: is a directory: name a file", data={"errno": "EISDIR"})
        permissions = exchange.args.get("permissions") or 0o644
        opened = _Open(path, permissions)
        if exchange.args["mode"] == "read":
            if path not in self.files:
                raise FileError(f"{asked}: there is no such file", data={"errno": "ENOENT"})
            opened.data, opened.permissions = self.files[path]
        elif path.rpartition("/")[0] not in self.directories:
            raise FileError(f"{asked}: there is no such directory", data={"errno": "ENOENT"})
        number = len(self.opened)
        self._open[number] = opened
        return {
            "file": number,
            "path": path,
            "size": len(opened.data),
            "permissions": opened.permissions,
        }

    def _file_read(self, exchange: Exchange) -> dict[str, Any]:
        opened = self._open[exchange.args["file"]]
        if opened.at and opened.path in self.hold:
            self.reading.set()
            self.hold[opened.path].wait(60)  # a failed test does not hang
            if exchange.cancelled.is_set():
                raise FileError("given up")
        piece = opened.data[opened.at : opened.at + exchange.args.get("bytes", 256 * 1024)]
        opened.at += len(piece)
        return {"data": piece, "eof": opened.at >= len(opened.data)}

    def _file_write(self, exchange: Exchange) -> dict[str, Any]:
        opened = self._open[exchange.args["file"]]
        opened.data += exchange.args["data"]
        if len(opened.data) > self.largest_bytes:
            raise FileTooLargeError(f"{opened.path}: more than may be copied", hint="Take less.")
        if len(opened.data) > self.full_bytes:
            raise FileError(f"{opened.path}: no space is left", data={"errno": "ENOSPC"})
        return {"size": len(opened.data)}

    def _file_close(self, exchange: Exchange) -> dict[str, Any]:
        opened = self._open.pop(exchange.args["file"])
        if exchange.args.get("keep", False) and opened.path in self.made_meanwhile:
            self.directories.add(opened.path)
            raise FileError(f"{opened.path}: is a directory", data={"errno": "EISDIR"})
        if exchange.args.get("keep", False):
            self.files[opened.path] = opened.data, opened.permissions
        return {"path": opened.path, "size": len(opened.data)}


def _paths(exchange: Exchange) -> tuple[str, str]:
    """The path that was asked for, and what it means."""
    asked = str(exchange.args["path"])
    whole = asked if asked.startswith("/") else f"/workspace/{asked}"
    return asked, "/" + "/".join(part for part in whole.split("/") if part not in ("", "."))


class _Open:
    def __init__(self, path: str, permissions: int) -> None:
        self.path = path
        self.permissions = permissions
        self.data = b""
        self.at = 0
