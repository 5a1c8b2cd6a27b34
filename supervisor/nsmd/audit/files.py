"""The audit's file: appended to, rotated by size, ours alone.

Several supervisors of one user (each with a socket of its own) may write to the same file: every
line is one write(2) with O_APPEND, and whoever rotates holds a lock on the file meanwhile.
"""

from __future__ import annotations

import fcntl
import os
import stat
import time
from contextlib import suppress

_FLAGS = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
"""Read as well, to see how the last line ends; non-blocking, lest a FIFO in its place holds us."""


LOOK_S = 0.05
"""Lines of that time may still go to a file that somebody else has just set aside."""


class AuditFile:
    """See the module. Blocks: for a thread. Not for two threads at once.

    Args:
        path: of the file; its directory has to be there.
        max_bytes: a larger one becomes `PATH.1`, that one `PATH.2`, and so on.
        keep: how many of these there are; the oldest is deleted.
    """

    def __init__(self, path: str, *, max_bytes: int, keep: int) -> None:
        self.path = path
        self.max_bytes = max_bytes
        self.keep = keep
        self._descriptor = -1
        self._broken_line = False
        self._looked_s = 0.0

    def __repr__(self) -> str:
        return f"<AuditFile {self.path}>"

    def append(self, line: bytes) -> None:
        """Add one line.

        Args:
            line: with its newline.

        Raises:
            OSError: it could not be written, or not whole: a reader skips what is not JSON.
        """
        self._prepare(len(line))
        data = b"\n" + line if self._broken_line else line
        written = os.write(self._descriptor, data)
        if written < len(data):
            self._broken_line = True
            # Why, tells the next attempt; a disk that takes a part of a line is full.
            os.write(self._descriptor, data[written:])
        self._broken_line = False

    def close(self) -> None:
        """Close the file; the next line opens it again."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def _prepare(self, more: int) -> None:
        """Have the file open that is at the path now, with room for so many bytes."""
        while True:
            if self._descriptor < 0 or not self._is_still_at_path():
                self.close()
                self._open()
            size = os.fstat(self._descriptor).st_size
            if size == 0 or size + more <= self.max_bytes:
                return
            fcntl.flock(self._descriptor, fcntl.LOCK_EX)  # ends when it is closed
            if self._is_at_path():
                self._rotate()
            self.close()

    def _open(self) -> None:
        descriptor = os.open(self.path, _FLAGS, 0o600)
        try:
            self._broken_line = _last_byte(descriptor) not in (b"", b"\n")
        except BaseException:
            os.close(descriptor)
            raise
        self._descriptor = descriptor

    def _is_still_at_path(self) -> bool:
        """The same, for each of many lines: it was looked at just now."""
        now_s = time.monotonic()
        if now_s - self._looked_s < LOOK_S:
            return True
        self._looked_s = now_s
        return self._is_at_path()

    def _is_at_path(self) -> bool:
        """Whether nobody has renamed or removed it."""
        try:
            found = os.lstat(self.path)
        except FileNotFoundError:
            return False
        mine = os.fstat(self._descriptor)
        return (found.st_dev, found.st_ino) == (mine.st_dev, mine.st_ino)

    def _rotate(self) -> None:
        if self.keep == 0:
            os.unlink(self.path)
            return
        for number in range(self.keep, 1, -1):
            with suppress(FileNotFoundError):
                os.replace(f"{self.path}.{number - 1}", f"{self.path}.{number}")
        os.replace(self.path, f"{self.path}.1")


def _last_byte(descriptor: int) -> bytes:
    """Of a file, empty for an empty one; it is ours alone from then on.

    Raises:
        OSError: it is no file of ours.
    """
    found = os.fstat(descriptor)
    if not stat.S_ISREG(found.st_mode) or found.st_uid != os.geteuid():
        raise OSError("what is there is no file of ours. Move it out of the way.")
    if stat.S_IMODE(found.st_mode) & 0o077:
        os.fchmod(descriptor, 0o600)
    return os.pread(descriptor, 1, found.st_size - 1) if found.st_size else b""
