"""Requests of the supervisor about files, and their answers."""

from __future__ import annotations

import contextlib
import errno
import os
import stat

from sandbox.archives import ArchiveProcess
from sandbox.files import FileReader, FileWriter, append_to
from sandbox.framing import RequestError, data_field, flag_field, text_field, whole_field
from sandbox.linux import c_library
from sandbox.paths import (
    MAX_PAGE,
    WORDS,
    TransferError,
    absolute_path,
    entry_of,
    fail_with,
    free_bytes,
    make_directories,
    make_directory,
    name_of,
    open_directory,
    open_parent,
    open_path,
    page_of,
    refuse_virtual,
)
from sandbox.watches import FileWatches

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any

    from sandbox.processes import ProcessTrees
    from sandbox.session import SharedSession


CHUNK_BYTES = 256 * 1024
"""Largest piece of a file's data in one frame, before base64."""

RENAME_NOREPLACE = 1
"""Flag of renameat2(2), from linux/fs.h."""


def make_requested_directory(message: Mapping[str, Any], path: str) -> dict[str, Any]:
    if flag_field(message, "parents", default=False):
        make_directories(path)
    else:
        make_directory(path)
    directory = open_directory(path)
    try:
        room = free_bytes(directory)
        return {"type": "file_directory", "path": name_of(directory), "free_bytes": room}
    finally:
        os.close(directory)


def list_requested_directory(message: Mapping[str, Any], path: str) -> dict[str, Any]:
    after = text_field(message, "after") if "after" in message else ""
    count = whole_field(message, "count", MAX_PAGE, low=1, high=MAX_PAGE)
    directory = open_directory(path)
    try:
        entries, more = page_of(directory, after, count)
        return {
            "type": "file_entries",
            "path": name_of(directory),
            "entries": entries,
            "more": more,
            "free_bytes": free_bytes(directory),
        }
    finally:
        os.close(directory)


def read_requested_file(message: Mapping[str, Any], path: str) -> dict[str, Any]:
    offset = whole_field(message, "offset", 0)
    count = whole_field(message, "bytes", CHUNK_BYTES, high=CHUNK_BYTES)
    file = FileReader(path)
    try:
        data, eof = file.read_at(offset, count)
    finally:
        file.close()
    return {
        "type": "file_content",
        "path": file.path,
        "size": file.size,
        "permissions": file.permissions,
        "data": text_of_data(data),
        "eof": eof,
    }


def write_requested_file(message: Mapping[str, Any], path: str) -> dict[str, Any]:
    data, permissions = data_of(message), whole_field(message, "permissions", None)
    if flag_field(message, "parents", default=False):
        make_directories(os.path.dirname(path) or "/")
    if flag_field(message, "append", default=False):
        where, size = append_to(path, data, permissions)
        return {"type": "file_closed", "path": where, "size": size}
    overwrite = flag_field(message, "overwrite", default=True)
    file = FileWriter(path, permissions, overwrite=overwrite)
    try:
        file.write(data)
        file.keep()
        return {
            "type": "file_closed",
            "path": file.path,
            "size": file.size,
            "permissions": file.permissions,
        }
    finally:
        file.close()


def stat_requested_path(message: Mapping[str, Any], path: str) -> dict[str, Any]:
    name = path.rstrip("/").rpartition("/")[2]
    if flag_field(message, "follow", default=False) or name in {"", ".", ".."}:
        found = open_path(path)
    else:
        directory, name = open_parent(path)
        try:
            found = os.open(name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=directory)
        finally:
            os.close(directory)
    try:
        refuse_virtual(found, path)
        status = os.fstat(found)
        if path.endswith("/") and not stat.S_ISDIR(status.st_mode):
            fail_with(errno.ENOTDIR)
        where = name_of(found)
        answer: dict[str, Any] = {"type": "file_entries", "path": where}
        if stat.S_ISLNK(status.st_mode):
            answer["target"] = os.readlink("", dir_fd=found)
    finally:
        os.close(found)
    answer["entries"] = [entry_of(where.rpartition("/")[2] or "/", status)]
    return answer


def remove_requested_path(message: Mapping[str, Any], path: str) -> dict[str, Any] | None:
    recursive = flag_field(message, "recursive", default=False)
    directory, name = open_parent(path)
    try:
        status = os.stat(name, dir_fd=directory, follow_symlinks=False)
        if not stat.S_ISDIR(status.st_mode):
            if path.endswith("/"):
                fail_with(errno.ENOTDIR)
            os.unlink(name, dir_fd=directory)
        elif not remove_empty(directory, name, status):
            if not recursive:
                fail_with(errno.ENOTEMPTY)
            return None
        where = name_of(directory).rstrip("/")
        return {"type": "file_closed", "path": f"{where}/{name}", "size": 0, "entries": 1}
    finally:
        os.close(directory)


def rename_requested_path(message: Mapping[str, Any], path: str) -> dict[str, Any]:
    overwrite = flag_field(message, "overwrite", default=True)
    here, name = open_parent(path)
    try:
        there, new_name = open_parent(text_field(message, "to"))
        try:
            if overwrite:
                os.rename(name, new_name, src_dir_fd=here, dst_dir_fd=there)
            else:
                rename_to_free(here, name, there, new_name)
            where = name_of(there).rstrip("/")
            return {"type": "file_closed", "path": f"{where}/{new_name}", "size": 0}
        finally:
            os.close(there)
    finally:
        os.close(here)


def remove_empty(around: int, name: str, status: os.stat_result) -> bool:
    """Remove a directory, if it is empty; return whether it was.

    The kernel looks inside last, so what can't be removed is refused before anything is touched.
    """
    try:
        os.rmdir(name, dir_fd=around)
    except OSError as error:
        if error.errno in {errno.ENOTEMPTY, errno.EEXIST}:
            return False
        if error.errno == errno.EROFS and status.st_dev != os.fstat(around).st_dev:
            fail_with(errno.EBUSY)
        raise
    return True


def rename_to_free(here: int, name: str, there: int, new_name: str) -> None:
    """Renames, if nothing has the new name."""
    import ctypes

    arguments = here, os.fsencode(name), there, os.fsencode(new_name), RENAME_NOREPLACE
    if c_library().renameat2(*arguments) < 0:
        fail_with(ctypes.get_errno())


def text_of_data(data: bytes) -> str:
    """Bytes of a file, as frames have them."""
    from binascii import b2a_base64

    return b2a_base64(data, newline=False).decode()


def data_of(message: Mapping[str, Any]) -> bytes:
    """The bytes that a request has for a file. Raise RequestError for too many, or none."""
    if len(text_field(message, "data")) > 2 * CHUNK_BYTES:
        raise RequestError(f"data must be base64 of at most {CHUNK_BYTES} bytes")
    data = data_field(message)
    if len(data) > CHUNK_BYTES:
        raise RequestError(f"data has more than {CHUNK_BYTES} bytes")
    return data


FILE_REQUESTS: dict[str, Callable[[Mapping[str, Any], str], dict[str, Any] | None]] = {
    "file_mkdir": make_requested_directory,
    "file_entries": list_requested_directory,
    "file_get": read_requested_file,
    "file_put": write_requested_file,
    "file_stat": stat_requested_path,
    "file_remove": remove_requested_path,
    "file_rename": rename_requested_path,
}
"""Functions that answer requests that leave nothing open. They get absolute paths, and return an
answer without its id; None if it takes a process of its own."""

TRANSFER_REQUESTS = (
    "file_open",
    "file_read",
    "file_write",
    "file_close",
    "file_watch",
    "file_unwatch",
    *FILE_REQUESTS,
)

MAX_OPEN_FILES = 8
"""Transfers at a time."""

MAX_ERROR = 8192
"""Characters; a path may have 4096."""


class Transfers:
    """The files that the supervisor has open, by the ids that it gave them.

    Each request has its answer at once, but for two: a read while the supervisor lags behind with
    what it has been sent waits, so that what is kept for it stays bounded. The end of an archive
    waits for the process that makes or unpacks it. Made when the first request comes.
    """

    def __init__(self, session: SharedSession, trees: ProcessTrees) -> None:
        self._session = session
        self._send = session.send
        self._helpers = trees.helpers
        trees.exit_handlers.append(self._on_exit)
        self._watches = FileWatches(session)
        self._files: dict[str | int, FileReader | FileWriter | ArchiveProcess] = {}
        self._waiting: dict[str | int, Mapping[str, Any]] = {}

    @property
    def ids(self) -> list[str]:
        return [str(request_id) for request_id in self._files]

    def _path_in(self, message: Mapping[str, Any], name: str = "path") -> str:
        return absolute_path(self._session.workspace, message.get(name))

    def take(self, request_id: str | int, message: Mapping[str, Any]) -> None:
        """Answer a request, now or when that is possible."""
        path = message.get("path") or getattr(self._files.get(request_id), "path", "")
        try:
            kind = message["type"]
            if kind in FILE_REQUESTS:
                self._answer(request_id, message)
            elif kind == "file_watch":
                recursive = flag_field(message, "recursive", default=False)
                watched = self._path_in(message)
                answer = self._watches.begin(request_id, watched, recursive=recursive)
                self._send({"id": request_id, **answer})
            elif kind == "file_unwatch":
                self._watches.end(request_id)
                self._send({"type": "file_closed", "id": request_id, "path": "", "size": 0})
            elif kind == "file_open":
                self._open(request_id, message)
            else:
                self._continue(request_id, message)
        except TransferError as error:
            self._fail(request_id, str(error), error.code)
        except OSError as error:
            number = error.errno or 0
            words = WORDS.get(number, os.strerror(number))
            self._fail(request_id, f"{path}: {words}", errno.errorcode.get(number, ""))
        except ValueError as error:  # not base64, or no name that a file could have
            self._fail(request_id, f"{path!r:.200}: {error}", "EINVAL")

    def _answer(self, request_id: str | int, message: Mapping[str, Any]) -> None:
        """Do what leaves no file open; a directory with all in it is removed by a process."""
        if request_id in self._files:
            raise TransferError("a file is open under this id: its transfer is over")
        path = self._path_in(message)
        if "to" in message:
            message = {**message, "to": self._path_in(message, "to")}
        answer = FILE_REQUESTS[message["type"]](message, path)
        if answer is None:
            self._check_room(request_id)
            self._start(request_id, "remove", path, None)
            self._waiting[request_id] = {"type": "file_close", "keep": True}
        else:
            self._send({"id": request_id, **answer})

    def go_on(self) -> None:
        """Answer what waited, as far as the supervisor has caught up."""
        for request_id in list(self._waiting):
            if not self._session.may_send():
                return
            if not isinstance(self._files.get(request_id), ArchiveProcess):
                self.take(request_id, self._waiting.pop(request_id))

    def _on_exit(self, pid: int, wait_status: int, _usage: object) -> None:
        """Handle the end of a child, if it is one of an archive."""
        for request_id, file in list(self._files.items()):
            if isinstance(file, ArchiveProcess) and file.pid == pid:
                file.ended(wait_status)
                if request_id in self._waiting:
                    self.take(request_id, self._waiting.pop(request_id))

    def end_watches(self) -> None:
        """Stop watching: nobody waits for what happens any more."""
        self._watches.end_all()

    def drop_all(self) -> None:
        """End every transfer; nothing half-written stays."""
        self.end_watches()
        for request_id in list(self._files):
            self._drop(request_id)

    def _drop(self, request_id: str | int) -> None:
        self._waiting.pop(request_id, None)
        file = self._files.pop(request_id, None)
        if file is not None:
            with contextlib.suppress(OSError):
                file.close()

    def _fail(self, request_id: str | int, text: str, code: str) -> None:
        self._drop(request_id)
        self._send(_failure(request_id, text, code))

    def _open(self, request_id: str | int, message: Mapping[str, Any]) -> None:
        self._check_room(request_id)
        mode, passes = message.get("mode"), flag_field(message, "descriptor", default=False)
        whole = self._path_in(message)
        limit = whole_field(message, "limit", None)
        passes = passes and self._session.channel.passes_descriptors
        if mode in ("archive", "unpack"):
            if not passes:
                raise RequestError(f"mode {mode!r} needs descriptor")
            archive = self._start(request_id, mode, whole, limit)
            self._tell(request_id, archive, archive.claim())
            return
        if mode == "read":
            file: FileReader | FileWriter = FileReader(whole)
        elif mode == "write":
            file = FileWriter(
                whole,
                whole_field(message, "permissions", None),
                overwrite=flag_field(message, "overwrite", default=True),
                limit=limit,
            )
        else:
            raise RequestError(f"mode is {mode!r:.50}, expected 'read' or 'write'")
        self._files[request_id] = file
        self._tell(request_id, file, file.duplicate() if passes else None)

    def _check_room(self, request_id: str | int) -> None:
        if request_id in self._files:
            raise TransferError("a file is open under this id already: its transfer is over")
        if len(self._files) >= MAX_OPEN_FILES:
            raise TransferError(
                f"{MAX_OPEN_FILES} files are open already: close one first", errno.EMFILE
            )

    def _start(
        self, request_id: str | int, mode: str, path: str, limit: int | None
    ) -> ArchiveProcess:
        archive = self._files[request_id] = ArchiveProcess(mode, path, limit)
        self._helpers.add(archive.pid)
        return archive

    def _tell(
        self,
        request_id: str | int,
        file: FileReader | FileWriter | ArchiveProcess,
        descriptor: int | None = None,
    ) -> None:
        answer = {
            "type": "file",
            "id": request_id,
            "path": file.path,
            "size": file.size,
            "permissions": file.permissions,
        }
        if file.free_bytes is not None:
            answer["free_bytes"] = file.free_bytes
        if descriptor is None:
            self._send(answer)
            return

        def fallback() -> dict[str, Any]:
            if not isinstance(file, ArchiveProcess):
                return answer  # its data then goes through the channel
            self._drop(request_id)
            words = f"{file.path}: {os.strerror(errno.ETOOMANYREFS)}"
            return _failure(request_id, words, "ETOOMANYREFS")

        self._send({**answer, "descriptor": True}, descriptor, fallback)

    def _continue(self, request_id: str | int, message: Mapping[str, Any]) -> None:
        kind = message["type"]
        file = self._files.get(request_id)
        if file is None:
            raise TransferError("no file is open under this id: open it first", errno.EBADF)
        if isinstance(file, ArchiveProcess) and kind == "file_close":
            self._finish(request_id, file, message)
        elif request_id in self._waiting:
            raise TransferError("the read before has no answer yet", errno.EBUSY)
        elif kind == "file_close":
            if isinstance(file, FileWriter) and message.get("keep") is True:
                file.keep()
            answer = {"type": "file_closed", "id": request_id, "path": file.path}
            answer["size"] = file.size if isinstance(file, FileWriter) else file.moved
            self._drop(request_id)
            self._send(answer)
        elif kind == "file_read" and isinstance(file, FileReader):
            count = whole_field(message, "bytes", CHUNK_BYTES, low=1, high=CHUNK_BYTES)
            if self._session.may_send():
                data, eof = file.read(count)
                text = text_of_data(data)
                self._send({"type": "file_data", "id": request_id, "data": text, "eof": eof})
            else:
                self._waiting[request_id] = message
        elif kind == "file_write" and isinstance(file, FileWriter):
            file.write(data_of(message))
            self._tell(request_id, file)
        else:
            raise TransferError("the file is open for the other direction", errno.EBADF)

    def _finish(
        self, request_id: str | int, archive: ArchiveProcess, message: Mapping[str, Any]
    ) -> None:
        """Tell what became of an archive, once its process has ended."""
        if message.get("keep") is not True:
            self._drop(request_id)
            self._send({"type": "file_closed", "id": request_id, "path": archive.path, "size": 0})
        elif archive.has_ended:
            answer = archive.outcome()
            self._drop(request_id)
            self._send({"type": "file_closed", "id": request_id, "path": archive.path, **answer})
        else:
            self._waiting[request_id] = message


def _failure(request_id: str | int, text: str, code: str) -> dict[str, Any]:
    message = text[:MAX_ERROR]
    return {"type": "file_error", "id": request_id, "message": message, "code": code}
