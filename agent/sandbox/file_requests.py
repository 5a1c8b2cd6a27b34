"""Requests about files that need one answer, and no open file."""

from __future__ import annotations

import errno
import os
import stat

from sandbox.fields import RequestError, data_field, flag_field, text_field, whole_field
from sandbox.files import FileReader, FileWriter, append_to
from sandbox.linux import c_library
from sandbox.paths import (
    MAX_PAGE,
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

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any


FILE_REQUESTS = (
    "file_mkdir",
    "file_get",
    "file_put",
    "file_stat",
    "file_entries",
    "file_remove",
    "file_rename",
)


CHUNK_BYTES = 256 * 1024
"""Largest piece of a file's data in one frame, before base64."""


RENAME_NOREPLACE = 1
"""Flag of renameat2(2), from linux/fs.h."""


class FileRequests:
    """Answers to requests that leave nothing open.

    Args:
        workspace: where relative paths begin.
    """

    def __init__(self, workspace: str) -> None:
        self._workspace = workspace

    def answer(self, message: Mapping[str, Any]) -> dict[str, Any] | None:
        """The answer, without its id; None for one that takes a process of its own.

        Raises:
            TransferError, OSError, ValueError: it cannot be done.
        """
        kind, path = message["type"], absolute_path(self._workspace, message.get("path"))
        if kind == "file_get":
            return self._get(path, message)
        if kind == "file_put":
            return self._put(path, message)
        if kind == "file_stat":
            return self._stat(path, follow=flag_field(message, "follow", default=False))
        if kind == "file_entries":
            return self._entries(path, message)
        if kind == "file_remove":
            return self._remove(path, recursive=flag_field(message, "recursive", default=False))
        if kind == "file_rename":
            return self._rename(path, message)
        return self._make(path, parents=flag_field(message, "parents", default=False))

    @staticmethod
    def _make(path: str, *, parents: bool) -> dict[str, Any]:
        if parents:
            make_directories(path)
        else:
            make_directory(path)
        directory = open_directory(path)
        try:
            room = free_bytes(directory)
            return {"type": "file_directory", "path": name_of(directory), "free_bytes": room}
        finally:
            os.close(directory)

    @staticmethod
    def _entries(path: str, message: Mapping[str, Any]) -> dict[str, Any]:
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

    @staticmethod
    def _get(path: str, message: Mapping[str, Any]) -> dict[str, Any]:
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

    @staticmethod
    def _put(path: str, message: Mapping[str, Any]) -> dict[str, Any]:
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

    @staticmethod
    def _stat(path: str, *, follow: bool) -> dict[str, Any]:
        name = path.rstrip("/").rpartition("/")[2]
        if follow or name in {"", ".", ".."}:
            found = open_path(path)
        else:
            directory, name = open_parent(path)
            try:
                flags = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC
                found = os.open(name, flags, dir_fd=directory)
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

    @staticmethod
    def _remove(path: str, *, recursive: bool) -> dict[str, Any] | None:
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

    def _rename(self, path: str, message: Mapping[str, Any]) -> dict[str, Any]:
        target = absolute_path(self._workspace, message.get("to"))
        overwrite = flag_field(message, "overwrite", default=True)
        here, name = open_parent(path)
        try:
            there, new_name = open_parent(target)
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

    Raises:
        OSError: as of rmdir(2).
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
    """Renames, if nothing has the new name.

    Raises:
        OSError: as of rename(2); EEXIST.
    """
    import ctypes

    arguments = here, os.fsencode(name), there, os.fsencode(new_name), RENAME_NOREPLACE
    if c_library().renameat2(*arguments) < 0:
        fail_with(ctypes.get_errno())


def text_of_data(data: bytes) -> str:
    """Bytes of a file, as frames have them."""
    from binascii import b2a_base64

    return b2a_base64(data, newline=False).decode()


def data_of(message: Mapping[str, Any]) -> bytes:
    """The bytes that a request has for a file.

    Raises:
        RequestError: too many, or none at all.
    """
    if len(text_field(message, "data")) > 2 * CHUNK_BYTES:
        raise RequestError(f"data must be base64 of at most {CHUNK_BYTES} bytes")
    data = data_field(message)
    if len(data) > CHUNK_BYTES:
        raise RequestError(f"data has more than {CHUNK_BYTES} bytes")
    return data
