"""A file of the audit: appended to, rotated by size, readable by this user alone.

Several supervisors of one user (each with its own socket) may write to the same file: every line is
one write(2) with O_APPEND, and a supervisor holds a lock on the file while it rotates it.
"""

from __future__ import annotations

import errno
import fcntl
import os
import stat
import time
from contextlib import suppress

_FLAGS = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
"""Also readable, to check how the last line ends; non-blocking, so that a FIFO in its place does
not block.
"""


LOOK_S = 0.05
"""Seconds between checks of the path: lines of that time may still go to a file that somebody else
has just set aside.
"""


class AuditFile:
    """One file of the audit log. Blocks: use it in a thread, and not from two threads at once.

    Args:
        path: path of the file; its directory must exist.
        max_bytes: a larger one becomes `PATH.1`, that one `PATH.2`, and so on.
        keep: number of these to keep; the oldest is deleted. None: nothing is deleted or renamed
            again, and the numbers count up.
        look_s: seconds between checks that the file is still at its path.
        repair: bytes that end a torn line: a newline, after bytes that make the line invalid.
    """

    def __init__(
        self,
        path: str,
        *,
        max_bytes: int,
        keep: int | None,
        look_s: float = LOOK_S,
        repair: bytes = b"\n",
    ) -> None:
        self.path = path
        self.max_bytes = max_bytes
        self.keep = keep
        self._look_s = look_s
        self._repair = repair
        self._descriptor = -1
        self._end = 0  # size of the file after our last write
        self._broken_line = False
        self._looked_s = 0.0
        self._unsynced = self._name_synced = False

    def __repr__(self) -> str:
        return f"<AuditFile {self.path}>"

    def append(self, line: bytes) -> None:
        """Add one line.

        Args:
            line: with its newline.

        Raises:
            OSError: it could not be written, or only in part: a reader skips what is not JSON.
        """
        end = self._prepare(len(line))
        self._unsynced = True
        data = self._repair + line if self._broken_line else line
        written = os.write(self._descriptor, data)
        while written < len(data):
            self._broken_line, self._end = True, end + written
            # The next attempt shows the reason; a disk that takes a part of a line is full.
            written += os.write(self._descriptor, data[written:])
        self._broken_line, self._end = False, end + len(data)

    def sync(self) -> None:
        """Sync added lines to disk.

        Raises:
            OSError: they may not be on disk; or the file was removed meanwhile.
        """
        if not self._unsynced:
            return
        self._unsynced = False  # what could not be synced is lost for good (fsync(2))
        os.fdatasync(self._descriptor)
        if os.fstat(self._descriptor).st_nlink == 0:
            raise OSError(errno.ENOENT, "the file was removed while it was written")
        if not self._name_synced:
            sync_directory(os.path.dirname(self.path))
            self._name_synced = True

    def close(self) -> None:
        """Close the file; the next line opens it again."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1
        self._unsynced = self._name_synced = False

    def _prepare(self, more: int) -> int:
        """Open the file at the path, with room for so many bytes. Returns its size."""
        while True:
            if self._descriptor < 0 or not self._is_still_at_path():
                self._leave()
                self._open()
            size = os.fstat(self._descriptor).st_size
            if size == 0 or size + more <= self.max_bytes:
                if size != self._end:  # others write, too, and their lines may be torn
                    self._broken_line = _last_byte(self._descriptor) not in (b"", b"\n")
                return size
            fcntl.flock(self._descriptor, fcntl.LOCK_EX)  # it ends when the file is closed
            if self._is_at_path():
                self._rotate()
            self._leave()

    def _leave(self) -> None:
        """Close it, synced to disk if that is promised."""
        try:
            if self.keep is None:
                self.sync()
        finally:
            self.close()

    def _open(self) -> None:
        try:
            descriptor = os.open(self.path, _FLAGS, 0o600)
        except OSError as error:
            if error.errno in (errno.ELOOP, errno.EISDIR):  # a link, a directory
                raise _not_ours() from None
            raise
        try:
            _make_ours(descriptor)
            self._broken_line = _last_byte(descriptor) not in (b"", b"\n")
            self._end = os.fstat(descriptor).st_size
        except BaseException:
            os.close(descriptor)
            raise
        self._descriptor = descriptor

    def _is_still_at_path(self) -> bool:
        """Return whether it is still at its path, from a check a moment ago."""
        now_s = time.monotonic()
        if now_s - self._looked_s < self._look_s:
            return True
        self._looked_s = now_s
        return self._is_at_path()

    def _is_at_path(self) -> bool:
        """Return whether the file is still at its path: not renamed, not removed."""
        try:
            found = os.lstat(self.path)
        except FileNotFoundError:
            return False
        mine = os.fstat(self._descriptor)
        return (found.st_dev, found.st_ino) == (mine.st_dev, mine.st_ino)

    def _rotate(self) -> None:
        if self.keep is None:
            os.rename(self.path, f"{self.path}.{max(numbers(self.path), default=0) + 1}")
            return
        if self.keep == 0:
            os.unlink(self.path)
            return
        for number in range(self.keep, 1, -1):
            with suppress(FileNotFoundError):
                os.replace(f"{self.path}.{number - 1}", f"{self.path}.{number}")
        os.replace(self.path, f"{self.path}.1")


def numbers(path: str) -> list[int]:
    """List the numbers of the rotated files, in no order."""
    directory, name = os.path.split(path)
    prefix = f"{name}."
    found = (each[len(prefix) :] for each in os.listdir(directory) if each.startswith(prefix))
    return [int(each) for each in found if each.isascii() and each.isdecimal()]


def sync_directory(directory: str) -> None:
    """Sync the names in a directory to disk.

    Raises:
        OSError: they may not be on disk.
    """
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _make_ours(descriptor: int) -> None:
    """Make the file readable by this user alone.

    Raises:
        OSError: it is no file of this user.
    """
    found = os.fstat(descriptor)
    if not stat.S_ISREG(found.st_mode) or found.st_uid != os.geteuid():
        raise _not_ours()
    if stat.S_IMODE(found.st_mode) & 0o077:
        os.fchmod(descriptor, 0o600)


def _not_ours() -> OSError:
    return OSError("what is there is no file of ours. Move it out of the way.")


def _last_byte(descriptor: int) -> bytes:
    """Read the last byte of a file; empty for an empty file."""
    size = os.fstat(descriptor).st_size
    return os.pread(descriptor, 1, size - 1) if size else b""
