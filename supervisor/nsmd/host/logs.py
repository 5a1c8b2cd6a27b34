"""The supervisor's log: lines in the format of systemd's journal, the file, and a bound on floods.

If standard error is the journal's own stream, the journal adds time and program to each line, and
reads a level from ``<N>`` at its beginning (sd-daemon(3)). The subject of a line follows it as
``key=value``, so that `journalctl --user -u nsm-supervisor -g session=ID` finds a session's lines.

Requests to a control socket cost their sender nothing, but each closed connection costs a line in
the log: hundreds of kilobytes a second. In an interval, each kind of line from each source appears
`FULL` times. Of further ones, the first, second, fourth, eighth, ... appears and says how many it
stands for; the first one of a later interval says how many are missing in the one before. So
nothing waits for an interval's end, and other kinds of lines and lines about other clients appear
as before.
"""

from __future__ import annotations

import errno
import fcntl
import logging
import os
import select
import stat
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from contextvars import ContextVar
from typing import TextIO

from nsm.wire.tuples import NamedTuple

PLAIN = "%(asctime)s %(levelname)s %(name)s: %(message)s"
"""Format if nothing else adds the time."""


class About(NamedTuple):
    """Subject of a task for the log; empty fields are not shown."""

    client: str = ""
    session: str = ""
    box: str = ""


_ABOUT: ContextVar[About] = ContextVar("about", default=About())  # noqa: B039  # it is constant


def about(*, session: str | None = None, client: str | None = None, box: str | None = None) -> None:
    """Set the subject of this task, and of those that it starts from now on.

    Args:
        session, client, box: its id, its name, the scope of its box; None to keep the present one.
    """
    before = _ABOUT.get()
    _ABOUT.set(
        About(
            before.client if client is None else client,
            before.session if session is None else session,
            before.box if box is None else box,
        )
    )


def current_subject() -> About:
    """Return the subject of this task."""
    return _ABOUT.get()


def goes_to_journal(stream: TextIO, environment: Mapping[str, str]) -> bool:
    """Return whether the journal reads this stream (systemd.exec(5), JOURNAL_STREAM)."""
    try:
        found = os.fstat(stream.fileno())
    except (OSError, ValueError):
        return False
    return environment.get("JOURNAL_STREAM") == f"{found.st_dev}:{found.st_ino}"


def formatter_for(stream: TextIO, environment: Mapping[str, str]) -> logging.Formatter:
    """Return the format of lines for a stream."""
    return JournalFormatter() if goes_to_journal(stream, environment) else TailFormatter(PLAIN)


class TailFormatter(logging.Formatter):
    """Format with the subject at the end of a line."""

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 (logging's name)
        about = _ABOUT.get()
        facts = zip(about._fields, about, strict=True)
        tail = "".join(f" {key}={_quoted(value)}" for key, value in facts if value)
        return super().formatMessage(record) + tail


class JournalFormatter(TailFormatter):
    """Format with the priority at the beginning of each line: a line is one entry of
    the journal.
    """

    def __init__(self) -> None:
        super().__init__("%(name)s: %(message)s")

    def format(self, record: logging.LogRecord) -> str:
        prefix = f"<{_priority(record.levelno)}>"
        return "\n".join(f"{prefix}{line}" for line in super().format(record).split("\n"))


def _priority(level: int) -> int:
    """Priority of syslog(3) for a level of Python."""
    if level >= logging.CRITICAL:
        return 2
    if level >= logging.ERROR:
        return 3
    if level >= logging.WARNING:
        return 4
    return 6 if level >= logging.INFO else 7


def _quoted(value: str) -> str:
    """Quote a value as one word, since clients choose their names."""
    if value.isascii() and value.isprintable() and not set(value) & set(' "='):
        return value
    text = value.encode("unicode_escape").decode().replace('"', '\\"')
    return f'"{text}"'


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


FULL = 10
"""Lines of a kind in each interval: enough to see the mistake."""

INTERVAL_S = 60.0

MAX_KINDS = 128
"""Largest number of kinds, since clients choose their names. Beyond that, all lines of one
statement are one kind.
"""

LOGGERS = ("nsmd.control.connection", "nsmd.control.server", "nsmd.mcp.attachment")
"""Loggers whose lines strangers can cause before they are let in, or before anything is known of
them. All lines of other loggers are written: they report what was done.
"""

_Key = tuple[str, int, str, About | None]


class _Kind:
    __slots__ = ("began_s", "left_out", "seen")

    def __init__(self, began_s: float) -> None:
        self.began_s = began_s
        self.seen = self.left_out = 0


class FloodFilter(logging.Filter):
    """Filter of repeated log lines: a few in full, then their number."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._clock = clock
        self._kinds: dict[_Key, _Kind] = {}

    def __repr__(self) -> str:
        return f"<FloodFilter {len(self._kinds)} kinds>"

    def filter(self, record: logging.LogRecord) -> bool:
        """Return whether to write the line, which may then stand for others."""
        now = self._clock()
        kind = self._kind(record, now)
        if now - kind.began_s >= INTERVAL_S:
            left_out, lasted_s = kind.left_out, now - kind.began_s
            kind.began_s, kind.seen, kind.left_out = now, 1, 0
            if left_out:
                _add(record, f"{left_out} more like it are left out in the {lasted_s:.0f} s before")
            return True
        kind.seen += 1
        if kind.seen <= FULL:
            return True
        kind.left_out += 1
        if kind.left_out & (kind.left_out - 1):
            return False
        seconds = now - kind.began_s
        _add(record, f"{kind.seen} like it in {seconds:.0f} s; most are left out from here on")
        return True

    def _kind(self, record: logging.LogRecord, now: float) -> _Kind:
        key: _Key = (record.name, record.lineno, str(record.msg), current_subject())
        kind = self._kinds.get(key)
        if kind is None and len(self._kinds) >= MAX_KINDS:
            for other, found in list(self._kinds.items()):
                if now - found.began_s >= INTERVAL_S:
                    del self._kinds[other]
            if len(self._kinds) >= MAX_KINDS:
                key = (record.name, record.lineno, "", None)
                kind = self._kinds.get(key)
        if kind is None:
            kind = self._kinds[key] = _Kind(now)
        return kind


def limit_floods() -> None:
    """Limit the lines of `LOGGERS` in this process."""
    flood = FloodFilter()
    for name in LOGGERS:
        logging.getLogger(name).addFilter(flood)


def _add(record: logging.LogRecord, text: str) -> None:
    record.msg, record.args = f"{record.getMessage()} ({text})", ()
