"""Tar archives on their way through a pipe."""

from __future__ import annotations

import errno
import os

from sandbox.framing import READ_BYTES

TYPE_CHECKING = False
if TYPE_CHECKING:
    from tarfile import TarInfo

PIPE_BYTES = 1024 * 1024

BLOCK_BYTES = 512
"""Blocks of a tar archive; two without content are its end."""


def head_of(info: TarInfo, modified_ns: int) -> bytes:
    """The header of a member, after one of pax that has the time of its last change in full."""
    import tarfile

    seconds, parts = divmod(max(0, modified_ns), 1_000_000_000)
    info.mtime, times = seconds, b""
    if parts:
        text = b" mtime=%d.%09d\n" % (seconds, parts)
        text = b"%d%s" % (len(text) + 2, text)  # its own length, which has two digits, is first
        pax = tarfile.TarInfo("times")
        pax.type, pax.size = tarfile.XHDTYPE, len(text)
        times = pax.tobuf(tarfile.USTAR_FORMAT) + text.ljust(BLOCK_BYTES, b"\0")
    return times + info.tobuf(tarfile.GNU_FORMAT, "utf-8", "surrogateescape")


def modified_ns_of(member: TarInfo) -> int:
    """The time of the last change of a member, which may be from any program."""
    seconds, _, parts = member.pax_headers.get("mtime", "").partition(".")
    if seconds.isdecimal() and parts.isdecimal() and len(seconds) < 12:
        return int(seconds) * 1_000_000_000 + int(f"{parts:0<9.9}")
    if not 0 <= member.mtime < 10**11:  # it may be infinite, or no number
        return 0
    return int(member.mtime) * 1_000_000_000


class PipeSink:
    """An archive on its way into a pipe. Small pieces go together; the kernel moves large files.

    Args:
        pipe: its write end.
    """

    def __init__(self, pipe: int) -> None:
        self._pipe = pipe
        self._data = bytearray()

    def write(self, data: bytes) -> None:
        self._data += data
        if len(self._data) >= READ_BYTES:
            self.flush()

    def flush(self) -> None:
        write_whole(self._pipe, self._data)
        self._data.clear()

    def copy(self, file: int, size: int) -> None:
        """Send as many bytes as were announced, whatever becomes of the file meanwhile.

        Raises:
            OSError: it cannot be read; the archive is as good as with another file.
        """
        left, problem = size, None
        try:
            while left and (sent := self._send(file, left)):
                left -= sent
        except BrokenPipeError:
            raise
        except OSError as error:
            problem = error
        while left:  # it cannot be read, or has become shorter
            sent = min(left, READ_BYTES)
            self.write(bytes(sent))
            left -= sent
        self.write(bytes(-size % BLOCK_BYTES))
        if problem is not None:
            raise problem

    def _send(self, file: int, count: int) -> int:
        if count >= READ_BYTES:
            self.flush()
            try:
                return os.sendfile(self._pipe, file, None, min(count, PIPE_BYTES))  # type: ignore[call-arg, arg-type, unused-ignore]
            except OSError as error:
                if error.errno != errno.EINVAL:  # its file system cannot do that
                    raise
        data = os.read(file, min(count, READ_BYTES))
        self.write(data)
        return len(data)


class PipeSource:
    """An archive that comes out of a pipe, as a file that tarfile can read, forward only.

    Args:
        pipe: its read end.
    """

    def __init__(self, pipe: int) -> None:
        self._pipe = pipe
        self._data = b""
        self._taken = 0  # of the data
        self._place = 0

    def tell(self) -> int:
        return self._place

    def seek(self, place: int) -> None:
        """
        Raises:
            ValueError: it is behind us.
        """
        if place < self._place:
            raise ValueError("it leads back")
        while self._place < place and self.read(min(place - self._place, READ_BYTES)):
            pass

    def read(self, count: int) -> bytes:
        """Read so many bytes, fewer at the end."""
        pieces = [self._take(count)]
        left = count - len(pieces[0])
        while left > 0:
            self._data, self._taken = os.read(self._pipe, READ_BYTES), 0
            if not self._data:
                break
            pieces.append(self._take(left))
            left -= len(pieces[-1])
        return b"".join(pieces)

    def _take(self, count: int) -> bytes:
        data = self._data[self._taken : self._taken + count]
        self._taken += len(data)
        self._place += len(data)
        return data

    def move(self, file: int, count: int) -> int:
        """Write so many bytes to a file; returns their number, smaller at the end."""
        data = self._take(count)
        write_whole(file, data)
        left = count - len(data)
        while left and (moved := _splice(self._pipe, file, left)):
            left -= moved
            self._place += moved
        return count - left


def _splice(pipe: int, file: int, count: int) -> int:
    """Move bytes from a pipe to a file; returns their number, 0 at the end."""
    if hasattr(os, "splice"):  # from Python 3.10 on
        try:
            return os.splice(pipe, file, count)
        except OSError as error:
            if error.errno != errno.EINVAL:  # its file system cannot do that
                raise
    data = os.read(pipe, min(count, READ_BYTES))
    write_whole(file, data)
    return len(data)


def write_whole(fd: int, data: bytes | bytearray) -> None:
    """write(2) until nothing is left."""
    left = memoryview(data)
    while left:
        left = left[os.write(fd, left) :]
