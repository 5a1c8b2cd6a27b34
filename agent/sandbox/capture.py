"""Output of interpreters: pipes, what of it a reply has room for, files for the rest, previews.

Also the bounds and marks of what is displayed, in the agent and in the Python worker.
"""

from __future__ import annotations

import codecs
import contextlib
import fcntl
import os
import sys
import time

from sandbox.framing import READ_BYTES, as_object
from sandbox.limits import MAX_REPLY_BYTES
from sandbox.linux import identity_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Mapping
    from typing import Any

    from sandbox.limits import Limits
    from sandbox.polling import Poller


DISPLAY_BYTES = 8 * 1024 * 1024
"""Displays kept per execution, all together: with two streams they have to fit into one answer of
the supervisor's, which has 16 MiB."""

DISPLAY_LEFT_OUT = f"[display left out: more than {DISPLAY_BYTES} bytes in one execution]"

DISPLAY_CHARS = 1024 * 1024
"""Characters of a value's text that are shown; of a longer one, its beginning."""

MAX_DISPLAYS = 1000

PLACE = "application/vnd.nsm.place+json"
"""MIME type that marks a display whose place in stdout is known. Its data is the number in the line
`[image N]` of stdout, or 0 where stdout has the text of the value."""

MAX_DEPTH = 48
"""Levels of what is displayed as JSON; plots have about twenty. The supervisor's answers, in which
it is some levels down, have at most 64."""

DISPLAY_TOO_DEEP = f"[display left out: more than {MAX_DEPTH} levels in each other]"


def is_deep(value: Any) -> bool:
    """Return whether lists and objects are nested deeper than an answer to a client may be: it
    could not be sent at all."""
    level: list[Any] = [value]
    for _ in range(MAX_DEPTH):
        below: list[Any] = []
        for part in level:
            inside = as_object(part)
            below += part if inside is None else inside.values()
        level = [one for one in below if isinstance(one, (dict, list))]
        if not level:
            return False
    return True


PREVIEW_BYTES = 64 * 1024
"""Streamed output that waits to be sent, per stream; older output is left out of the preview."""

PREVIEW_INTERVAL_S = 0.05
"""At most 20 updates a second."""

FIONREAD = 0x541B

NO_BYTES = b"\0" * 4


class SpillFile:
    """A file below the workspace's ``.nsm`` for output that a reply has no room for.

    The directory belongs to user code, which may have put links, other files or nothing there:
    every step is relative to a descriptor and follows no link, and any failure just ends the file.
    """

    DIRECTORY = ".nsm"

    def __init__(self, workspace: str, name: str, limit: int) -> None:
        self.path = f"{workspace}/{self.DIRECTORY}/{name}"
        self.bytes = 0
        self._limit = limit
        self._fd = -1
        with (
            contextlib.suppress(OSError),
            self._open_directory(workspace, create=True) as directory,
        ):
            self._fd = os.open(
                name,
                os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC,
                0o600,
                dir_fd=directory,
            )

    @classmethod
    @contextlib.contextmanager
    def _open_directory(cls, workspace: str, *, create: bool) -> Generator[int, None, None]:
        flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
        top = os.open(workspace, flags)
        try:
            if create:
                with contextlib.suppress(FileExistsError):
                    os.mkdir(cls.DIRECTORY, 0o700, dir_fd=top)
            directory = os.open(cls.DIRECTORY, flags, dir_fd=top)
        finally:
            os.close(top)
        try:
            yield directory
        finally:
            os.close(directory)

    @classmethod
    def remove(cls, workspace: str, name: str) -> None:
        with contextlib.suppress(OSError), cls._open_directory(workspace, create=False) as top:
            os.unlink(name, dir_fd=top)

    @property
    def full(self) -> bool:
        return self._fd < 0 or self.bytes >= self._limit

    def write(self, data: bytes | bytearray) -> None:
        view = memoryview(data)[: max(0, self._limit - self.bytes)]
        try:
            while view and self._fd >= 0:
                written = os.write(self._fd, view)
                self.bytes += written
                view = view[written:]
        except OSError:
            self.close()

    def close(self) -> str | None:
        """End the file; its path if there is something in it and it has not been removed."""
        if self._fd < 0:
            return self.path if self.bytes else None
        there = os.fstat(self._fd).st_nlink > 0
        os.close(self._fd)
        self._fd = -1
        return self.path if self.bytes and there else None


class Spills:
    """Makes spill files, and removes the oldest so that all together stay bounded."""

    def __init__(self, workspace: str) -> None:
        self._workspace = workspace
        self._made = 0
        self._files: list[tuple[str, SpillFile]] = []

    def make(self, stream: str, limits: Limits) -> SpillFile:
        self._made += 1
        name = f"{stream}-{self._made}.txt"
        while self._files and sum(file.bytes for _, file in self._files) > limits.file_bytes:
            SpillFile.remove(self._workspace, self._files.pop(0)[0])
        file = SpillFile(self._workspace, name, limits.file_bytes)
        self._files.append((name, file))
        return file


class Capture:
    """Output of one stream for one execution: the whole, or head, tail and, of `spills`, a file."""

    def __init__(self, stream: str, spills: Spills | None, limits: Limits) -> None:
        self.total_bytes = 0
        self._stream = stream
        self._spills = spills
        self._limits = limits
        self._reply_bytes = limits.reply_bytes
        self._reply_chars: int | None = None
        self._half = limits.reply_bytes // 2
        self._head = bytearray()
        self._tail = bytearray()
        self._file: SpillFile | None = None

    @property
    def full(self) -> bool:
        """True if more output would be kept only in the tail."""
        return self._file is not None and self._file.full

    def bound_reply(self, reply_bytes: int, reply_chars: int | None) -> None:
        """Another bound for this reply; that of bytes unless output has gone to a file already."""
        reply_bytes = min(reply_bytes, MAX_REPLY_BYTES)
        self._reply_chars = reply_chars
        if self._file is None and self._reply_bytes != reply_bytes:
            self._reply_bytes = reply_bytes
            self._half = reply_bytes // 2
            self.write(b"")

    def write(self, data: bytes) -> None:
        self.total_bytes += len(data)
        if self._file is None:
            self._head += data
            if len(self._head) > self._reply_bytes:
                self._begin_file()
                self._tail += memoryview(self._head)[self._half :]
                del self._head[self._half :]
        else:
            self._file.write(data)
            self._tail += data
        if len(self._tail) > 2 * self._half + READ_BYTES:
            del self._tail[: len(self._tail) - self._half]

    def _begin_file(self) -> SpillFile:
        spills = self._spills
        # A file in no directory cannot be made, and takes nothing.
        self._file = spills.make(self._stream, self._limits) if spills else SpillFile("", "", 0)
        self._file.write(self._head)
        return self._file

    def latest(self, count: int) -> tuple[int, bytes]:
        """The end so far, at most `count` bytes or what is kept of it, and how many precede."""
        kept = self._head if self._file is None else self._tail
        data = bytes(kept[-count:])
        return self.total_bytes - len(data), data

    def result(self) -> tuple[str, dict[str, Any] | None]:
        """The text for the reply and, if it is not the whole, what is left out and where it is.

        A byte that is not UTF-8 is a lone surrogate (PEP 383).
        """
        chars, file = self._reply_chars, self._file
        if file is None:
            text = self._head.decode("utf-8", "surrogateescape")
            if chars is None or len(text) <= chars:
                return text, None
            file = self._begin_file()
            head = tail = text
        else:
            del self._tail[: max(0, len(self._tail) - self._half)]
            _trim_to_characters(self._head, self._tail)
            head = self._head.decode("utf-8", "surrogateescape")
            tail = self._tail.decode("utf-8", "surrogateescape")
        if chars is not None:
            head, tail = head[: chars // 2], tail[max(0, len(tail) - chars // 2) :]
        omitted = self.total_bytes - len((head + tail).encode("utf-8", "surrogateescape"))
        return f"{head}\n[... {omitted} bytes left out ...]\n{tail}", {
            "omitted_bytes": omitted,
            "total_bytes": self.total_bytes,
            "file": file.close(),
            "file_bytes": file.bytes,
        }


def cut_character(data: bytes | bytearray) -> int:
    """Return how many bytes at the end are the beginning of a longer UTF-8 character."""
    for count in range(1, min(3, len(data)) + 1):
        byte = data[-count]
        if byte >= 0xC0:
            length = 2 + (byte >= 0xE0) + (byte >= 0xF0)
            return count if count < length else 0
        if byte < 0x80:
            break
    return 0


def _trim_to_characters(head: bytearray, tail: bytearray) -> None:
    """Take the torn character off the end of `head` and the beginning of `tail`."""
    del head[len(head) - cut_character(head) :]
    count = 0
    while count < min(3, len(tail)) and 0x80 <= tail[count] < 0xC0:
        count += 1
    del tail[:count]


class OutputPipe:
    """One output stream of an interpreter: a pipe that the agent reads.

    The end for the interpreter, `child_fd`, stays open here as well: a pipe that nobody can write
    to would wake the agent for ever.
    """

    def __init__(self, ends: tuple[int, int] | None = None) -> None:
        self.read_fd, self.child_fd = ends or os.pipe2(os.O_CLOEXEC)
        os.set_blocking(self.read_fd, False)
        self.paused = False

    @property
    def identity(self) -> tuple[int, int]:
        return identity_of(os.fstat(self.read_fd))

    def close(self) -> None:
        os.close(self.read_fd)
        os.close(self.child_fd)

    def read(self, count: int = READ_BYTES) -> bytes:
        """Read at most `count` bytes; empty when there is nothing."""
        try:
            return os.read(self.read_fd, count)
        except BlockingIOError:
            return b""

    def cut(self) -> bytes:
        """Return the output so far, without what a flood adds meanwhile.

        The kernel's count of what waits is the cut. A marker in the output would break with
        `set -x` or a redirected stdout, and code could forge it. Nothing here waits: code that
        reads from its own pipe only takes its own output away. What a background process prints at
        the very end of an execution may belong to the next one; it is never lost.
        """
        waiting = int.from_bytes(fcntl.ioctl(self.read_fd, FIONREAD, NO_BYTES), sys.byteorder)
        pieces: list[bytes] = []
        while waiting > 0:
            piece = self.read(min(waiting, READ_BYTES))
            if not piece:
                break
            pieces.append(piece)
            waiting -= len(piece)
        return b"".join(pieces)


class Preview:
    """Output on its way to whoever watches an execution: coalesced, bounded, never waited for."""

    def __init__(
        self, poller: Poller, send: Callable[[str, str], None], may_send: Callable[[], bool]
    ) -> None:
        self._poller = poller
        self._send = send
        self._may_send = may_send
        self._sent_at = 0.0
        self._waiting = {"stdout": bytearray(), "stderr": bytearray()}
        self._dropped = {"stdout": 0, "stderr": 0}
        self._decoders = {
            stream: codecs.getincrementaldecoder("utf-8")("surrogateescape")
            for stream in self._waiting
        }

    def begin(self, captures: Mapping[str, Capture]) -> None:
        """Take what has been printed before anybody watched."""
        for stream, capture in captures.items():
            self._dropped[stream], data = capture.latest(PREVIEW_BYTES)
            self._waiting[stream] += data
        self.schedule()

    def write(self, stream: str, data: bytes) -> None:
        waiting = self._waiting[stream]
        waiting += data
        excess = len(waiting) - PREVIEW_BYTES
        if excess > 0:
            del waiting[:excess]
            self._dropped[stream] += excess
        self.schedule()

    def schedule(self) -> None:
        """Send what waits now, or as soon as the last update is old enough."""
        if not any(self._waiting.values()) or not self._may_send():
            return
        due = self._sent_at + PREVIEW_INTERVAL_S
        if time.monotonic() >= due:
            self._flush(final=False)
        else:
            self._poller.at("preview", due, self.schedule)

    def finish(self) -> None:
        """Send the rest, if the supervisor takes it."""
        self._poller.cancel("preview")
        if self._may_send():
            self._flush(final=True)

    def _flush(self, *, final: bool) -> None:
        self._poller.cancel("preview")
        self._sent_at = time.monotonic()
        for stream, waiting in self._waiting.items():
            decoder = self._decoders[stream]
            if self._dropped[stream]:
                decoder.reset()
                _trim_to_characters(bytearray(), waiting)
            text = decoder.decode(bytes(waiting), final)
            waiting.clear()
            if self._dropped[stream]:
                text = f"\n[... {self._dropped[stream]} bytes left out ...]\n{text}"
                self._dropped[stream] = 0
            if text:
                self._send(stream, text)
