"""Log handler that cannot stop the supervisor, whatever the log is written to.

A disk may be full, a pipe closed, a reader stopped. A line that cannot be written now is counted,
and the next one that can be written says how many are missing. Standard error may be a file, a
pipe, a terminal or the journal's socket. It is shared, so its mode stays unchanged; instead the
handler checks first whether it accepts data.
"""

from __future__ import annotations

import errno
import fcntl
import logging
import os
import select
import stat
from contextlib import suppress

MAX_LOG_BYTES = 10 * 1024 * 1024
"""A larger log of ours is set aside as `supervisor.log.1` at the start (`nsm.startup.spawn`)."""

PIECE_BYTES = select.PIPE_BUF
"""Bytes that a pipe takes at once if it takes anything (pipe(7))."""

_LOG_FLAGS = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW


class LogHandler(logging.Handler):
    """Handler of log lines that never blocks or fails its caller.

    Args:
        descriptor: descriptor for lines, mostly standard error.
        path: path of our own log. If the descriptor is this file, the file is rotated by size;
            other files are left alone.

    Attributes:
        lost: number of lost lines that were not reported yet.
    """

    def __init__(self, descriptor: int, path: str, *, max_bytes: int = MAX_LOG_BYTES) -> None:
        super().__init__()
        self.lost = 0
        self._descriptor = descriptor
        self._path = path
        self._max_bytes = max_bytes
        self._ours = self._is_at_path()
        self._why = ""
        self._cut = False

    def __repr__(self) -> str:
        return f"<LogHandler to {self._path if self._ours else self._descriptor}>"

    def emit(self, record: logging.LogRecord) -> None:
        """Write a line; never raises."""
        try:
            line = self.format(record)
        except Exception as error:  # noqa: BLE001  # a mistake in a log call is no reason to end
            line = f"{record.levelname} {record.name}: {record.msg!r} (cannot be put: {error!r})"
        try:
            if self._ours:
                with suppress(OSError):  # then the open file grows
                    self._rotate()
            if self.lost:
                self._write(f"{self.lost} lines of the log are missing here: {self._why}")
                self.lost = 0
            self._write(line)
        except OSError as error:
            self.lost += 1
            self._why = error.strerror or str(error)

    def _write(self, line: str) -> None:
        begin = b"\n" if self._cut else b""
        data = memoryview(begin + line.encode(errors="backslashreplace") + b"\n")
        while data:
            poll = select.poll()
            poll.register(self._descriptor, select.POLLOUT)
            if not poll.poll(0):
                raise OSError(errno.EAGAIN, "nobody reads it")
            data = data[os.write(self._descriptor, data[:PIECE_BYTES]) :]
            self._cut = bool(data)

    def _is_at_path(self) -> bool:
        """Return whether the descriptor is our own log."""
        try:
            found, ours = os.lstat(self._path), os.fstat(self._descriptor)
        except OSError:
            return False
        same = (found.st_dev, found.st_ino) == (ours.st_dev, ours.st_ino)
        return same and stat.S_ISREG(found.st_mode)

    def _rotate(self) -> None:
        """Make the descriptor refer to the file at the path, and rotate a file that is
        too large.
        """
        if self._is_at_path():
            if os.fstat(self._descriptor).st_size <= self._max_bytes:
                return
            # Several supervisors of one user may have it open; the second one finds a new file.
            with suppress(BlockingIOError):
                fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if self._is_at_path():
                    os.replace(self._path, f"{self._path}.1")
        fresh = os.open(self._path, _LOG_FLAGS, 0o600)
        try:
            before = os.fstat(self._descriptor)
            for other in (1, 2):  # output without logging goes to the same place
                with suppress(OSError):
                    found = os.fstat(other)
                    if (found.st_dev, found.st_ino) == (before.st_dev, before.st_ino):
                        os.dup2(fresh, other)
            if self._descriptor not in (1, 2):
                os.dup2(fresh, self._descriptor, inheritable=False)
        finally:
            os.close(fresh)
