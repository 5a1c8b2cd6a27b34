"""Local directories as tar archives, made and unpacked while they travel.

What a session sends is unpacked below the target only: no name leads out of it, no link is followed
or made, and a file appears whole.
"""

from __future__ import annotations

import errno
import os
import re
import stat
import tarfile
from contextlib import contextmanager, suppress
from typing import IO, TYPE_CHECKING

from nsm import below
from nsm.client.local_files import LinkError, LocalTarget, no_link, told
from nsm.wire.errors import FileError
from nsm.wire.files import LINK, SPECIAL, Skipped

if TYPE_CHECKING:
    from collections.abc import Callable, Generator
    from io import RawIOBase

    OnProgress = Callable[[int], object]

COPY_BYTES = 256 * 1024
_SMALL_BYTES = 64 * 1024
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
DEEPEST = 400
"""Directories around a file that a session sends; it may make up any depth."""

_NAME_BYTES = 64 * 1024
"""Largest name in an archive; Linux has no path of more than 4 KiB."""


class _ByteCount:
    """Count of bytes of an archive, for somebody who wants to know."""

    def __init__(self, on_progress: OnProgress | None) -> None:
        self._on_progress = on_progress
        self._moved = 0

    def add(self, size: int) -> None:
        self._moved += size
        if self._on_progress is not None:
            self._on_progress(self._moved)


class _Sink:
    """An archive on its way into a pipe. Small pieces go together; the kernel moves large files."""

    def __init__(self, pipe: RawIOBase, on_progress: OnProgress | None) -> None:
        self._pipe = pipe
        self._count = _ByteCount(on_progress)
        self._data = bytearray()

    def write(self, data: bytes) -> None:
        self._data += data
        if len(self._data) >= _SMALL_BYTES:
            self.flush()

    def flush(self) -> None:
        write_whole(self._pipe, self._data)
        self._count.add(len(self._data))
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
            sent = min(left, _SMALL_BYTES)
            self.write(bytes(sent))
            left -= sent
        self.write(bytes(-size % tarfile.BLOCKSIZE))
        if problem is not None:
            raise problem

    def _send(self, file: int, count: int) -> int:
        if count >= _SMALL_BYTES:
            self.flush()
            try:
                sent = os.sendfile(self._pipe.fileno(), file, None, min(count, COPY_BYTES))
            except OSError as error:
                if error.errno != errno.EINVAL:  # its file system cannot do that
                    raise
            else:
                self._count.add(sent)
                return sent
        data = os.read(file, min(count, _SMALL_BYTES))
        self.write(data)
        return len(data)


class _Source:
    """An archive that comes out of a pipe."""

    def __init__(self, pipe: IO[bytes], on_progress: OnProgress | None) -> None:
        self._pipe = pipe
        self._count = _ByteCount(on_progress)

    def read(self, count: int) -> bytes:
        data = self._pipe.read(count)
        self._count.add(len(data))
        return data


def pack(directory: int, pipe: int, on_progress: OnProgress | None) -> list[Skipped]:
    """Write a directory to a pipe as a tar archive, and close the pipe.

    Args:
        directory: its descriptor.

    Returns:
        What is neither file, directory nor link, or can't be read.
    """
    skipped: list[Skipped] = []
    with open(pipe, "wb", buffering=0) as file:
        sink = _Sink(file, on_progress)
        _pack_below(sink, os.dup(directory), "", skipped)
        sink.write(bytes(2 * tarfile.BLOCKSIZE))
        sink.flush()
    return skipped


def _pack_below(sink: _Sink, directory: int, path: str, skipped: list[Skipped]) -> None:
    """Pack what is in a directory, and close it."""
    try:
        for name in sorted(os.listdir(directory)):
            whole = f"{path}{name}"
            try:
                _pack_one(sink, directory, name, whole, skipped)
            except BrokenPipeError:
                raise
            except FileNotFoundError:
                pass  # it has gone meanwhile
            except OSError as error:
                skipped.append(Skipped(whole, error.strerror or str(error)))
    finally:
        os.close(directory)


def _pack_one(sink: _Sink, directory: int, name: str, whole: str, skipped: list[Skipped]) -> None:
    status = os.stat(name, dir_fd=directory, follow_symlinks=False)
    info = tarfile.TarInfo(whole)
    info.mode, modified_ns = status.st_mode & 0o777, status.st_mtime_ns
    if stat.S_ISDIR(status.st_mode):
        inside = os.open(name, _DIRECTORY, dir_fd=directory)
        info.type = tarfile.DIRTYPE
        sink.write(head_of(info, modified_ns))
        _pack_below(sink, inside, f"{whole}/", skipped)
    elif stat.S_ISLNK(status.st_mode):
        info.type, info.linkname = tarfile.SYMTYPE, os.readlink(name, dir_fd=directory)
        sink.write(head_of(info, modified_ns))
    elif not stat.S_ISREG(status.st_mode):
        skipped.append(Skipped(whole, SPECIAL))
    else:
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
        file = os.open(name, flags, dir_fd=directory)
        try:
            status = os.fstat(file)
            if not stat.S_ISREG(status.st_mode):
                skipped.append(Skipped(whole, "is not a file any more"))
                return
            info.size = status.st_size
            sink.write(head_of(info, status.st_mtime_ns))
            sink.copy(file, info.size)
        finally:
            os.close(file)


def head_of(info: tarfile.TarInfo, modified_ns: int) -> bytes:
    """The header of a member, after one of pax that has the time of its last change in full."""
    seconds, parts = divmod(max(0, modified_ns), 1_000_000_000)
    info.mtime, times = seconds, b""
    if parts:
        text = b" mtime=%d.%09d\n" % (seconds, parts)
        text = b"%d%s" % (len(text) + 2, text)  # its own length, which has two digits, is first
        pax = tarfile.TarInfo("times")
        pax.type, pax.size = tarfile.XHDTYPE, len(text)
        times = pax.tobuf(tarfile.USTAR_FORMAT) + text.ljust(tarfile.BLOCKSIZE, b"\0")
    return times + info.tobuf(tarfile.GNU_FORMAT, "utf-8", "surrogateescape")


_MTIME = re.compile(rb"^\d+ mtime=(\d{1,11})\.(\d{1,9})\d*$", re.MULTILINE)


def size_of(directory: int) -> int:
    """Count the bytes of all files of an open directory, as far as they can be seen."""
    size = 0
    for top, _, names, descriptor in os.fwalk(".", dir_fd=directory):
        del top
        for name in names:
            with suppress(OSError):
                status = os.stat(name, dir_fd=descriptor, follow_symlinks=False)
                size += status.st_size * stat.S_ISREG(status.st_mode)
    return size


@contextmanager
def open_target(path: str, name: str, *, follow: bool) -> Generator[int]:
    """Open a directory here that takes a copy. It is made if it is missing.

    Args:
        name: the copy goes into a directory of that name there, which is no link; empty if it does
            not.
        follow: the directory itself may be named by a link.

    Raises:
        LinkError: a link is there.
        LocalFileError: it cannot be made or opened.
    """
    path = path.rstrip("/") or "/"
    flags = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
    with told(path, "opened"):
        if follow:
            os.makedirs(path, exist_ok=True)
            top = os.open(path, flags)
        else:
            opening = below.opened_around(path, make=not name)
            with no_link(path, "written"), opening as (root, inside):
                if not name and inside:
                    below.make_directories(root, inside, mounts=True)
                top = below.open_below(root, inside, flags, mounts=True)
    try:
        if name:
            whole = os.path.join(path, name)
            with told(whole, "opened"):
                with suppress(FileExistsError):
                    os.mkdir(name, dir_fd=top)
                if os.path.islink(whole):
                    raise LinkError(whole)
                around, top = top, os.open(name, flags | os.O_NOFOLLOW, dir_fd=top)
                os.close(around)
        yield top
    finally:
        os.close(top)


def unpack(
    pipe: int, top: int, path: str, on_progress: OnProgress | None, skipped: list[Skipped]
) -> int:
    """Unpack the tar archive that comes from a session into a directory, and close the pipe.

    Args:
        top: descriptor of the directory; `path` is for people.
        skipped: takes what is left out: links, special files, what would lie outside, and what
            cannot be written.

    Returns:
        Number of entries that are there now.

    Raises:
        FileError: it is no archive as sessions send them.
    """
    entries = 0
    with open(pipe, "rb", buffering=COPY_BYTES) as file:
        source = _Source(file, on_progress)
        try:
            while (found := _next_member(source)) is not None:
                member, modified_ns = found
                content = _Content(source, member.size)
                if why := _unpack_one(member, modified_ns, content, top, path):
                    skipped.append(Skipped(member.name, why))
                else:
                    entries += 1
                content.pass_over()
        except tarfile.TarError as error:
            raise FileError(f"the session sent no archive: {error}") from error
        while source.read(COPY_BYTES):
            pass  # what pads the archive
    return entries


def _next_member(source: _Source) -> tuple[tarfile.TarInfo, int] | None:
    """The next header, and the time of the last change in nanoseconds; None at the end.

    tarfile's own reader would hold names of any length in memory.
    """
    long = {tarfile.GNUTYPE_LONGNAME: b"", tarfile.GNUTYPE_LONGLINK: b"", tarfile.XHDTYPE: b""}
    while True:
        block = source.read(tarfile.BLOCKSIZE)
        if block == tarfile.NUL * tarfile.BLOCKSIZE:
            return None
        member = tarfile.TarInfo.frombuf(block, "utf-8", "surrogateescape")
        if member.type not in long:
            if name := long[tarfile.GNUTYPE_LONGNAME]:
                member.name = name.decode("utf-8", "surrogateescape")
            seconds, parts = int(member.mtime), b""
            if found := _MTIME.search(long[tarfile.XHDTYPE]):
                seconds, parts = int(found[1]), found[2]
            return member, max(0, seconds) * 1_000_000_000 + int(parts.ljust(9, b"0"))
        if member.size > _NAME_BYTES:
            raise tarfile.TarError("a name is too long")
        content = _Content(source, member.size)
        long[member.type] = content.read(_NAME_BYTES).rstrip(b"\0")
        content.pass_over()


class _Content:
    """The content of one member of an archive.

    Raises:
        tarfile.TarError: the archive ends in it.
    """

    def __init__(self, source: _Source, size: int) -> None:
        self._source = source
        self._left = size
        self._padding = -size % tarfile.BLOCKSIZE

    def read(self, count: int) -> bytes:
        wanted = min(count, self._left)
        data = self._source.read(wanted) if wanted else b""
        if wanted and not data:
            raise tarfile.TarError("it ends in the middle of a file")
        self._left -= len(data)
        return data

    def pass_over(self) -> None:
        """Read what is left of it."""
        while self.read(COPY_BYTES):
            pass
        if self._padding:
            self._source.read(self._padding)


def _unpack_one(
    member: tarfile.TarInfo, modified_ns: int, content: _Content, top: int, path: str
) -> str:
    """Unpack a member; returns why it is left out, or an empty text.

    Raises:
        FileError: there is no room for it.
    """
    names = [name for name in member.name.split("/") if name not in ("", ".")]
    if member.name.startswith("/") or "\0" in member.name or ".." in names:
        return "its name leads out of the directory"
    if not names:
        return ""
    if len(names) > DEEPEST:
        return f"more than {DEEPEST} directories are around it"
    if member.issym() or member.islnk():
        return LINK
    if not member.isdir() and not member.isreg():
        return SPECIAL
    whole = os.path.join(path, *names)
    try:
        with _parent_of(top, names) as parent:
            if member.isdir():
                _make_directory(parent, names[-1])
            else:
                _write(parent, whole, content, member.mode, modified_ns)
    except NotADirectoryError:
        return "its name leads through a link or a file"
    except FileExistsError:
        return "something that is not a directory has its name"
    except FileError as error:
        if error.data.get("errno") in ("ENOSPC", "EDQUOT"):
            raise
        return error.message.removeprefix(f"{whole} ")
    except OSError as error:
        return f"can't be made: {error.strerror}"
    return ""


@contextmanager
def _parent_of(top: int, names: list[str]) -> Generator[int]:
    here = os.dup(top)
    try:
        for name in names[:-1]:
            with suppress(FileExistsError):
                os.mkdir(name, dir_fd=here)
            found = os.open(name, os.O_PATH | _DIRECTORY, dir_fd=here)
            os.close(here)
            here = found
        yield here
    finally:
        os.close(here)


def _make_directory(parent: int, name: str) -> None:
    try:
        os.mkdir(name, dir_fd=parent)
    except FileExistsError:
        if not stat.S_ISDIR(os.stat(name, dir_fd=parent, follow_symlinks=False).st_mode):
            raise


def _write(parent: int, path: str, content: _Content, mode: int, modified_ns: int) -> None:
    with LocalTarget(path, below=parent) as new:
        while data := content.read(COPY_BYTES):
            new.write(data)
        new.date(modified_ns)
        new.keep(mode)


def write_whole(file: RawIOBase, data: bytes | bytearray) -> None:
    """Write all of it to a file that is not buffered."""
    left = memoryview(data)
    while left:
        left = left[file.write(left) or 0 :]
