"""Files on their way into the session and out of it."""

from __future__ import annotations

import contextlib
import errno
import os
import stat

from sandbox.fields import is_whole
from sandbox.paths import (
    WORDS,
    TransferError,
    entries_of,
    fail_with,
    free_bytes,
    make_directory,
    name_of,
    open_directory,
    open_path,
    refuse_special,
    refuse_virtual,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any


MAX_OPEN_FILES = 8
"""Transfers at a time."""


CHUNK_BYTES = 256 * 1024
"""Largest piece of a file's data in one frame, before base64."""


MAX_NUMBER = 2**53
"""Whole numbers from here on are not exact for every reader of JSON, and no frame has them."""


MAX_ERROR = 8192
"""Characters; a path may have 4096."""


class FileReader:
    """A file on its way out of the session, as long as it was when it was opened.

    Args:
        path: absolute.

    Attributes:
        path: without links.
        size: bytes that it had; `moved` is what has been read of them.
        permissions: the lower nine bits of its mode.

    Raises:
        TransferError: no regular file, or one that the kernel makes up.
        OSError: as of open(2).
    """

    def __init__(self, path: str) -> None:
        self.moved = 0
        found = open_path(path)
        try:
            status = os.fstat(found)
            refuse_special(status.st_mode, path)
            if path.endswith(("/", "/.")):
                fail_with(errno.ENOTDIR)
            if status.st_size >= MAX_NUMBER:
                raise TransferError(
                    f"{path}: has {status.st_size} bytes, more than can be copied", errno.EFBIG
                )
            self.path = name_of(found)
            # The very file that was looked at. It may be under a lease (fcntl(2)), and without
            # O_NONBLOCK its holder could keep this process waiting for 45 seconds.
            self._fd = os.open(
                f"/proc/self/fd/{found}", os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
            )
        finally:
            os.close(found)
        self.size = status.st_size
        self.permissions = status.st_mode & 0o777
        self.free_bytes: int | None = None

    def read(self, count: int) -> tuple[bytes, bool]:
        """Up to `count` bytes, and whether they are the last. What was added since is left out.

        Raises:
            OSError: as of read(2).
        """
        data = os.read(self._fd, min(count, self.size - self.moved))
        self.moved += len(data)
        return data, not data or self.moved >= self.size

    def close(self) -> None:
        os.close(self._fd)


class FileWriter:
    """A file on its way into the session. It appears, whole, when it is kept.

    Until then it has no name, so that no reader sees half of it and nothing is left behind by
    whatever ends this process; on a file system without such files it has a name of its own.

    Args:
        path: absolute; what is there must be a regular file or nothing, and no link.
        permissions: the lower nine bits count; None for those of what is there, else as usual.
        overwrite: False to refuse where something is, also if it appears meanwhile.

    Raises:
        TransferError: what is there can't be replaced by a file.
        OSError: as of open(2).
    """

    UNNAMED = os.O_TMPFILE

    def __init__(self, path: str, permissions: int | None, *, overwrite: bool) -> None:
        self.moved = 0
        self._overwrite = overwrite
        self._temporary = ""
        parent, _, self._name = path.rpartition("/")
        if self._name in {"", ".", ".."}:
            raise TransferError(f"{path}: {WORDS[errno.EISDIR]}", errno.EISDIR)
        self._directory = open_path(parent)
        try:
            there = self._look(path)
            mask = os.umask(0o077)
            os.umask(mask)
            if permissions is None:
                permissions = 0o666 & ~mask if there is None else there
            self.permissions = permissions & 0o777
            self.path = f"{name_of(self._directory).rstrip('/')}/{self._name}"
            self.free_bytes = free_bytes(self._directory)
            self._fd = self._open()
        except BaseException:
            os.close(self._directory)
            raise

    @property
    def size(self) -> int:
        return self.moved

    def _look(self, path: str) -> int | None:
        """Permissions of what is there; None if nothing is."""
        try:
            found = os.open(
                self._name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=self._directory
            )
        except FileNotFoundError:
            return None
        try:
            mode = os.fstat(found).st_mode
            if stat.S_ISLNK(mode):
                raise TransferError(
                    f"{path}: is a symbolic link to {os.readlink('', dir_fd=found)!r}: "
                    "name the file that is meant",
                    errno.ELOOP,
                )
            refuse_virtual(found, path)
            refuse_special(mode, path)
        finally:
            os.close(found)
        if not self._overwrite:
            fail_with(errno.EEXIST)
        if not os.access(self._name, os.W_OK, dir_fd=self._directory):
            raise TransferError(
                f"{path}: is read-only: change its permissions or remove it first", errno.EACCES
            )
        return mode

    def _open(self) -> int:
        flags = os.O_WRONLY | os.O_CLOEXEC
        try:
            if self.UNNAMED:
                return os.open(".", flags | self.UNNAMED, 0o600, dir_fd=self._directory)
        except OSError as error:
            # EISDIR is what kernels and file systems say that do not know of it.
            if error.errno not in {errno.EOPNOTSUPP, errno.EISDIR, errno.EINVAL}:
                raise
        self._temporary = self._other_name()
        flags |= os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
        return os.open(self._temporary, flags, 0o600, dir_fd=self._directory)

    @staticmethod
    def _other_name() -> str:
        return f".nsm-{os.urandom(8).hex()}"

    def write(self, data: bytes) -> None:
        """
        Raises:
            OSError: as of write(2), such as ENOSPC.
        """
        view = memoryview(data)
        while view:
            written = os.write(self._fd, view)
            self.moved += written
            view = view[written:]

    def keep(self) -> None:
        """Puts the file, whole, in its place.

        Raises:
            OSError: it can't be put there.
        """
        os.fchmod(self._fd, self.permissions)
        if self._temporary and self._overwrite:
            # Its file system may have no hard links either.
            self._rename()
            return
        try:
            self._link(self._name)
        except FileExistsError:
            if not self._overwrite:
                raise
            if not self._temporary:
                temporary = self._other_name()
                self._link(temporary)
                self._temporary = temporary
            self._rename()

    def _rename(self) -> None:
        os.rename(
            self._temporary, self._name, src_dir_fd=self._directory, dst_dir_fd=self._directory
        )
        self._temporary = ""

    def close(self) -> None:
        """Lets go of the file; one that has not been kept is gone."""
        os.close(self._fd)
        if self._temporary:
            with contextlib.suppress(OSError):
                os.unlink(self._temporary, dir_fd=self._directory)
        os.close(self._directory)

    def _link(self, name: str) -> None:
        """Gives the file a name that must be free."""
        if self._temporary:
            os.link(
                self._temporary,
                name,
                src_dir_fd=self._directory,
                dst_dir_fd=self._directory,
                follow_symlinks=False,
            )
        else:
            os.link(f"/proc/self/fd/{self._fd}", name, dst_dir_fd=self._directory)


class Transfers:
    """The files that the supervisor has open, by the ids that it gave them.

    Each request has its answer at once, but a read while the supervisor lags behind with what it
    has been sent: that waits, so that what is kept for it stays bounded.

    Args:
        workspace: where relative paths begin.
        send: takes an answer.
        may_send: False while the supervisor lags behind.
    """

    REQUESTS = ("file_open", "file_read", "file_write", "file_close", "file_list", "file_mkdir")

    def __init__(
        self,
        workspace: str,
        send: Callable[[dict[str, Any]], None],
        may_send: Callable[[], bool],
    ) -> None:
        self._workspace = workspace
        self._send = send
        self._may_send = may_send
        self._files: dict[str | int, FileReader | FileWriter] = {}
        self._waiting: dict[str | int, Mapping[str, Any]] = {}

    @property
    def ids(self) -> list[str]:
        return [str(request_id) for request_id in self._files]

    def take(self, request_id: str | int, message: Mapping[str, Any]) -> None:
        """Answers a request, now or when the supervisor has caught up."""
        path = message.get("path") or getattr(self._files.get(request_id), "path", "")
        try:
            if message["type"] == "file_open":
                self._open(request_id, message)
            elif message["type"] in {"file_list", "file_mkdir"}:
                self._list(request_id, message)
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

    def go_on(self) -> None:
        """Answers what waited, as far as the supervisor has caught up."""
        while self._waiting and self._may_send():
            request_id = next(iter(self._waiting))
            self.take(request_id, self._waiting.pop(request_id))

    def drop_all(self) -> None:
        """Ends every transfer; nothing half-written stays."""
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
        message = text[:MAX_ERROR]
        self._send({"type": "file_error", "id": request_id, "message": message, "code": code})

    def _open(self, request_id: str | int, message: Mapping[str, Any]) -> None:
        if request_id in self._files:
            raise TransferError("a file is open under this id already: its transfer is over")
        if len(self._files) >= MAX_OPEN_FILES:
            raise TransferError(
                f"{MAX_OPEN_FILES} files are open already: close one first", errno.EMFILE
            )
        mode = message.get("mode")
        permissions, overwrite = message.get("permissions"), message.get("overwrite", True)
        whole = self._whole(message.get("path"))
        if mode == "read":
            file: FileReader | FileWriter = FileReader(whole)
        elif mode != "write":
            raise TransferError(f"mode is {mode!r:.50}, expected 'read' or 'write'", errno.EINVAL)
        elif permissions is not None and not (is_whole(permissions) and permissions >= 0):
            raise TransferError("permissions must be a whole number, 0 or more", errno.EINVAL)
        elif not isinstance(overwrite, bool):
            raise TransferError("overwrite must be true or false", errno.EINVAL)
        else:
            file = FileWriter(whole, permissions, overwrite=overwrite)
        self._files[request_id] = file
        self._tell(request_id, file)

    def _whole(self, path: object) -> str:
        """The absolute path that a request means."""
        if not isinstance(path, str) or not path:
            raise TransferError("path must be a text that is not empty", errno.EINVAL)
        whole = os.path.join(self._workspace, path)
        if "\0" in path or len(os.fsencode(whole)) >= 4096:  # PATH_MAX
            raise TransferError("the path is too long or has a NUL in it", errno.ENAMETOOLONG)
        return whole

    def _list(self, request_id: str | int, message: Mapping[str, Any]) -> None:
        """Says what is in a directory, or makes it first and says only that it is there."""
        if request_id in self._files:
            raise TransferError("a file is open under this id: its transfer is over")
        path = self._whole(message.get("path"))
        makes = message["type"] == "file_mkdir"
        if makes:
            make_directory(path)
        directory = open_directory(path)
        try:
            entries, is_whole = ([], True) if makes else entries_of(directory)
            answer = {
                "type": "file_directory",
                "id": request_id,
                "path": name_of(directory),
                "entries": entries,
                "whole": is_whole,
                "free_bytes": free_bytes(directory),
            }
        finally:
            os.close(directory)
        self._send(answer)

    def _tell(self, request_id: str | int, file: FileReader | FileWriter) -> None:
        answer = {
            "type": "file",
            "id": request_id,
            "path": file.path,
            "size": file.size,
            "permissions": file.permissions,
        }
        if file.free_bytes is not None:
            answer["free_bytes"] = file.free_bytes
        self._send(answer)

    def _continue(self, request_id: str | int, message: Mapping[str, Any]) -> None:
        kind = message["type"]
        file = self._files.get(request_id)
        if file is None:
            raise TransferError("no file is open under this id: open it first", errno.EBADF)
        if request_id in self._waiting:
            raise TransferError("the read before has no answer yet", errno.EBUSY)
        if kind == "file_close":
            if isinstance(file, FileWriter) and message.get("keep") is True:
                file.keep()
            self._drop(request_id)
            answer = {"type": "file_closed", "id": request_id, "path": file.path}
            self._send({**answer, "size": file.moved})
        elif kind == "file_read" and isinstance(file, FileReader):
            count = message.get("bytes", CHUNK_BYTES)
            if not is_whole(count) or not 0 < count <= CHUNK_BYTES:
                raise TransferError(
                    f"bytes is {count!r:.50}, expected 1 to {CHUNK_BYTES}", errno.EINVAL
                )
            if self._may_send():
                self._send_data(request_id, *file.read(count))
            else:
                self._waiting[request_id] = message
        elif kind == "file_write" and isinstance(file, FileWriter):
            file.write(self._data(message.get("data")))
            self._tell(request_id, file)
        else:
            raise TransferError("the file is open for the other direction", errno.EBADF)

    def _send_data(self, request_id: str | int, data: bytes, eof: bool) -> None:
        from binascii import b2a_base64

        text = b2a_base64(data, newline=False).decode()
        self._send({"type": "file_data", "id": request_id, "data": text, "eof": eof})

    @staticmethod
    def _data(text: object) -> bytes:
        from base64 import b64decode

        if not isinstance(text, str) or len(text) > 2 * CHUNK_BYTES:
            raise TransferError(f"data must be base64 of at most {CHUNK_BYTES} bytes", errno.EINVAL)
        data = b64decode(text, validate=True)
        if len(data) > CHUNK_BYTES:
            raise TransferError(f"data has more than {CHUNK_BYTES} bytes", errno.EINVAL)
        return data
