"""Files of the audit: a thread appends lines, now and then, or before something starts.

A line that may be lost is only put into a list. Fifty milliseconds after the first one, less than
`nsm audit` needs to start, a thread makes and writes all of them, so that neither many lines nor a
slow disk delay the event loop; without lines nothing wakes up. A full disk costs only such lines,
which are counted: the first line that can be written again has their number.

A file of which nothing is deleted takes lines that must not be lost, too: its lines are written at
once, with one fdatasync(2) for all that wait, and somebody waits for that.

Several supervisors of one user (each with its own socket) may write to the same file: every line is
one write(2) with O_APPEND, and a supervisor holds a lock on the file while it rotates it.
"""

from __future__ import annotations

import errno
import fcntl
import json
import logging
import math
import os
import stat
import threading
import time
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from functools import lru_cache, partial
from typing import Any

import trio

from nsm.dataclass import dataclass

log = logging.getLogger(__name__)

GATHER_S = 0.05
"""Longest time that a line waits for others; a killed supervisor may lose that much."""

MAX_WAITING = 20_000
"""Largest number of queued lines; more are dropped and counted. At 3,000 executions a second, this
is 7 s of a hanging disk.
"""

MAX_WAITING_CHARS = 64 * 1024 * 1024
"""Largest size of code that waits for its hash."""

MAX_ASKING = 1000
"""Largest number of waiting lines of a file whose lines must not be lost."""

WRITE_S = 10.0
"""Time for a line that somebody waits for. A disk that takes longer hangs."""

RETRY_S, MAX_RETRY_S = 5.0, 320.0
"""First and longest time until lines that are kept are tried again."""

LAST_LINES_S = 2.0
"""Time for the remaining lines when the supervisor ends."""

HANGS = "the disk does not answer"

Make = Callable[[], bytes]
"""Makes a line, with its newline, in the thread that writes it."""

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
        """Add one line, with its newline. If it could be written only in part, a reader skips that,
        since it is not JSON.
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
        """Sync added lines to disk; an error says that they may not be there, or that the file was
        removed meanwhile.
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
    """Sync the names in a directory to disk."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _make_ours(descriptor: int) -> None:
    """Make the file readable by this user alone."""
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


@dataclass(slots=True, eq=False)
class _Line:
    """A line that waits to be written.

    Attributes:
        size: characters of code in it.
        kept: it waits until it can be written; else it may be lost.
        written: somebody waits for this; None if nobody does.
        undo: makes the line that must follow if this one gets on disk although its writer was told
            otherwise, from the reason.
        problem: why it could not be written; else empty.
    """

    make: Make
    size: int = 0
    kept: bool = False
    written: trio.Event | None = None
    undo: Callable[[str], bytes] | None = None
    problem: str = ""


class Journal:
    """Bounded queue of lines for a file of the audit, written in batches; made by `open_journal`.

    Attributes:
        written: number of lines.
        dropped: number of lines lost to a full disk or a full queue.
        problem: why lines cannot be written now, for people; else empty.
        gather: returns further lines, at each write.
    """

    def __init__(
        self, path: str, *, max_mb: int, keep: int | None, wall: Callable[[], float] = time.time
    ) -> None:
        self.written = self.dropped = 0
        self.problem = ""
        self.gather: Callable[[], Iterable[Make]] = tuple
        self.wall = wall
        loses = keep is not None
        # A torn line of a start does not count: it failed, so nothing happened.
        look_s, repair = (LOOK_S, b"\n") if loses else (0.0, b"#\n")
        self.file = AuditFile(path, max_bytes=max_mb << 20, keep=keep, look_s=look_s, repair=repair)
        self._gather_s = GATHER_S if loses else 0.0
        self._waiting: list[_Line] = []
        self._waiting_chars = 0
        self._lost, self._why_lost = 0, ""
        self._closed = False
        self._wanted = trio.Event()
        self._flushing = trio.Lock()
        # so that threads of other parts do not delay ours
        self._threads = trio.CapacityLimiter(math.inf)
        self._lock = threading.Lock()  # a thread may still hang in a write when we end

    def __repr__(self) -> str:
        return f"<Journal {self.file.path} {self.problem or 'well'}>"

    def put(self, make: Make, chars: int = 0) -> None:
        """Add a line, or count that it is lost. Quick. A line that is made of much says the number
        of characters.
        """
        if len(self._waiting) >= MAX_WAITING or self._waiting_chars + chars > MAX_WAITING_CHARS:
            self._lose(1, "the disk is too slow for them")
            return
        self._waiting_chars += chars
        self._add(_Line(make, chars))

    def wake(self) -> None:
        """Note that `gather` has lines."""
        self._wanted.set()

    def keep(self, data: bytes) -> trio.Event:
        """Add a line that is written as soon as it can be. Returns an event, for the first attempt
        to do so.
        """
        line = _Line(lambda: data, kept=True, written=trio.Event())
        self._add(line)
        assert line.written is not None
        return line.written

    async def write_now(self, data: bytes, undo: Callable[[str], bytes] | None = None) -> str:
        """Write a line, and wait until it is on disk. Returns why that failed; empty if it did not.

        Args:
            undo: makes a line to add if this one gets on disk although this says, or raises,
                otherwise.

        Cancellation: it counts as not written.
        """
        if self._closed:
            return "the supervisor ends"
        if len(self._waiting) >= MAX_ASKING:
            return "too many calls wait for it"
        line = _Line(lambda: data, undo=undo, written=(written := trio.Event()))
        self._add(line)
        try:
            with trio.move_on_after(WRITE_S):
                await written.wait()
        except trio.Cancelled:
            self._disown(line, "the call was taken back before")
            raise
        if not written.is_set():
            self._disown(line, HANGS)
        return line.problem

    async def run(self) -> None:
        """Write until cancelled."""
        retry_s = RETRY_S
        while True:
            with trio.move_on_after(retry_s if self._waiting else math.inf):
                await self._wanted.wait()
                await trio.sleep(self._gather_s)
            self._wanted = trio.Event()
            await self.flush()
            retry_s = min(retry_s * 2, MAX_RETRY_S) if self.problem else RETRY_S

    async def flush(self) -> None:
        """Write all waiting lines."""
        async with self._flushing:
            batch = [*map(_Line, self.gather()), *self._waiting]
            self._waiting, self._waiting_chars = [], 0
            if not batch:
                return
            lost = self._lost
            if lost:
                gap = {"event": "gap", "lost": lost, "why": self._why_lost}
                batch.insert(0, _Line(partial(line_of, self.wall(), gap)))
            # Abandoned when the supervisor ends: a hanging disk must not hold it up.
            try:
                count, problem = await trio.to_thread.run_sync(
                    self._write, batch, abandon_on_cancel=True, limiter=self._threads
                )
            except RuntimeError as error:  # the machine cannot start a thread
                count, problem = 0, str(error)
            if lost:
                self._lost -= lost if count else 0
                batch, count = batch[1:], max(0, count - 1)
            self._settle(batch, count, problem)

    async def close(self) -> None:
        """Write the last lines, if that does not take long."""
        self._closed = True
        with trio.move_on_after(LAST_LINES_S, shield=True):
            await self.flush()
        if self._lock.acquire(blocking=False):  # else its thread has the file, and ends with us
            self.file.close()
            self._lock.release()

    def _add(self, line: _Line) -> None:
        self._waiting.append(line)
        self._wanted.set()

    def _disown(self, line: _Line, why: str) -> None:
        """Give up a line for which nobody waits any more: if it is on disk, undo it."""
        if line in self._waiting:
            self._waiting.remove(line)
        elif line.written is not None and line.written.is_set() and not line.problem and line.undo:
            self.keep(line.undo(why))
        line.problem = line.problem or why

    def _write(self, batch: Sequence[_Line]) -> tuple[int, str]:
        """Append lines, and sync them to disk if they must not be lost. Blocks. Returns how many
        were added, and why not all are, or not on disk; else empty.
        """
        count = 0
        with self._lock:
            try:
                # One write per line: so a line is complete, and the interpreter's lock is released
                # in between for the event loop.
                for line in batch:
                    self.file.append(line.make())
                    count += 1
                if self.file.keep is None:
                    self.file.sync()
            except OSError as error:
                self.file.close()
                return count, error.strerror or str(error)
            except Exception as error:  # a bug of ours: everything else continues
                log.exception("%s cannot be written", self.file.path)
                self.file.close()
                return count, f"nsm failed: {error!r}"
        return count, ""

    def _settle(self, batch: Sequence[_Line], count: int, problem: str) -> None:
        """Tell the writers of lines what came of them: the first `count` were added, and `problem`
        says why not all were, or are not on disk.
        """
        self.written += count
        if self.problem and not problem:
            log.info("%s is written again", self.file.path)
            self.problem = ""
        late: list[_Line] = []
        for place, line in enumerate(batch):
            is_added = place < count
            if line.kept:
                late += () if is_added else (line,)
            elif line.written is None:
                if not is_added:
                    self._lose(1, problem)
            else:
                line.problem = line.problem or problem
                if is_added and line.problem and line.undo:
                    self.keep(line.undo(line.problem))
            if line.written is not None:
                line.written.set()
        self._waiting[:0] = late
        self._has_problem(problem)

    def _lose(self, lines: int, why: str) -> None:
        self.dropped += lines
        self._lost += lines
        self._why_lost = why
        self._has_problem(why)

    def _has_problem(self, why: str) -> None:
        if why and not self.problem:  # once, and not for each line
            log.warning("%s cannot be written: %s", self.file.path, why)
        self.problem = why or self.problem


def line_of(at_s: float, facts: Mapping[str, Any]) -> bytes:
    """Make a line: JSON in ASCII, so that half surrogates can be written, too. The time is Unix
    time.
    """
    return _ENCODER.encode({"at": rfc3339(at_s), **facts}).encode() + b"\n"


_ENCODER = json.JSONEncoder(separators=(",", ":"), default=str)


def rfc3339(at_s: float) -> str:
    """Format a time as in RFC 3339, UTC with microseconds."""
    second, fraction = divmod(round(at_s * 1e6), 1_000_000)
    return f"{_second(second)}.{fraction:06}Z"


@lru_cache(maxsize=4)
def _second(second: int) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(second))


@asynccontextmanager
async def open_journal(path: str, *, max_mb: int, keep: int | None) -> AsyncGenerator[Journal]:
    """Open a journal for the block; its last lines are written at the end.

    Args:
        path: path of the file; its directory may be made later.
        max_mb: a larger file is set aside.
        keep: number of these to keep; None: nothing is deleted, and lines are synced to disk.
    """
    journal = Journal(path, max_mb=max_mb, keep=keep)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(journal.run)
        try:
            yield journal
        finally:
            await journal.close()
            nursery.cancel_scope.cancel()
