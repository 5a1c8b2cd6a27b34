"""Local directories as tar archives, made and unpacked while they travel.

What a session sends is unpacked below the target only: no name leads out of it, no link is followed
or made, and a file appears whole.
"""

from __future__ import annotations

import os
import stat
import tarfile
from contextlib import contextmanager, suppress
from typing import IO, TYPE_CHECKING

from nsm.wire.errors import FileError
from nsm.wire.sessions import Skipped

if TYPE_CHECKING:
    from collections.abc import Callable, Generator
    from io import RawIOBase
    from typing import Self

    OnProgress = Callable[[int], object]

COPY_BYTES = 256 * 1024
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_NAME_BYTES = 64 * 1024
"""Largest name in an archive; Linux has no path of more than 4 KiB."""


class _Counted:
    """A file whose bytes are counted on their way."""

    def __init__(self, file: IO[bytes], on_progress: OnProgress | None) -> None:
        self._file = file
        self._on_progress = on_progress
        self._moved = 0

    def read(self, count: int) -> bytes:
        data = self._file.read(count)
        self._count(len(data))
        return data

    def write(self, data: bytes) -> int:
        self._count(len(data))
        return self._file.write(data)

    def _count(self, size: int) -> None:
        self._moved += size
        if self._on_progress is not None:
            self._on_progress(self._moved)


def pack(directory: str, pipe: int, on_progress: OnProgress | None) -> list[Skipped]:
    """Write a directory to a pipe as a tar archive, and close the pipe.

    Returns:
        What is neither file, directory nor link, or can't be read.
    """
    skipped: list[Skipped] = []
    with open(pipe, "wb", buffering=COPY_BYTES) as file:
        archive = _Counted(file, on_progress)
        top = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        _pack_below(archive, top, "", skipped)
        archive.write(tarfile.NUL * (2 * tarfile.BLOCKSIZE))
    return skipped


def _pack_below(archive: _Counted, directory: int, path: str, skipped: list[Skipped]) -> None:
    """Pack what is in a directory, and close it."""
    try:
        for name in sorted(os.listdir(directory)):
            whole = f"{path}{name}"
            try:
                _pack_one(archive, directory, name, whole, skipped)
            except BrokenPipeError:
                raise
            except FileNotFoundError:
                pass  # it has gone meanwhile
            except OSError as error:
                skipped.append(Skipped(whole, error.strerror or str(error)))
    finally:
        os.close(directory)


def _pack_one(
    archive: _Counted, directory: int, name: str, whole: str, skipped: list[Skipped]
) -> None:
    status = os.stat(name, dir_fd=directory, follow_symlinks=False)
    info = tarfile.TarInfo(whole)
    info.mode, info.mtime = status.st_mode & 0o777, int(max(0, status.st_mtime))
    if stat.S_ISDIR(status.st_mode):
        below = os.open(name, _DIRECTORY, dir_fd=directory)
        info.type = tarfile.DIRTYPE
        archive.write(_head(info))
        _pack_below(archive, below, f"{whole}/", skipped)
    elif stat.S_ISLNK(status.st_mode):
        info.type, info.linkname = tarfile.SYMTYPE, os.readlink(name, dir_fd=directory)
        archive.write(_head(info))
    elif not stat.S_ISREG(status.st_mode):
        skipped.append(Skipped(whole, "is no file, directory or link"))
    else:
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
        with open(os.open(name, flags, dir_fd=directory), "rb", buffering=0) as file:
            status = os.fstat(file.fileno())
            if not stat.S_ISREG(status.st_mode):
                skipped.append(Skipped(whole, "is no file any more"))
                return
            info.size = left = status.st_size
            archive.write(_head(info))
            # As many bytes as were announced, whatever becomes of the file meanwhile.
            while left:
                data = file.read(min(left, COPY_BYTES)) or bytes(min(left, COPY_BYTES))
                archive.write(data)
                left -= len(data)
            archive.write(bytes(-info.size % tarfile.BLOCKSIZE))


def _head(info: tarfile.TarInfo) -> bytes:
    return info.tobuf(tarfile.GNU_FORMAT, "utf-8", "surrogateescape")


def unpack(
    pipe: int, directory: str, on_progress: OnProgress | None, skipped: list[Skipped]
) -> int:
    """Unpack the tar archive that comes from a session into a directory, and close the pipe.

    Args:
        skipped: takes what is left out: links, special files, and what would lie outside.

    Returns:
        Number of entries that are there now.

    Raises:
        FileError: it is no archive as sessions send them.
    """
    entries = 0
    with open(pipe, "rb", buffering=COPY_BYTES) as file:
        source = _Counted(file, on_progress)
        top = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            while (member := _next_member(source)) is not None:
                content = _Content(source, member.size)
                if why := _unpack_one(member, content, top):
                    skipped.append(Skipped(member.name, why))
                else:
                    entries += 1
                content.pass_over()
        except tarfile.TarError as error:
            raise FileError(f"the session sent no archive: {error}") from error
        finally:
            os.close(top)
        while source.read(COPY_BYTES):
            pass  # what pads the archive
    return entries


def _next_member(source: _Counted) -> tarfile.TarInfo | None:
    """The next header; None at the end of the archive.

    tarfile's own reader would hold names of any length in memory.
    """
    long = {tarfile.GNUTYPE_LONGNAME: "", tarfile.GNUTYPE_LONGLINK: ""}
    while True:
        block = source.read(tarfile.BLOCKSIZE)
        if block == tarfile.NUL * tarfile.BLOCKSIZE:
            return None
        member = tarfile.TarInfo.frombuf(block, "utf-8", "surrogateescape")
        if member.type not in long:
            member.name = long[tarfile.GNUTYPE_LONGNAME] or member.name
            return member
        if member.size > _NAME_BYTES:
            raise tarfile.TarError("a name is too long")
        content = _Content(source, member.size)
        name = content.read(_NAME_BYTES).rstrip(b"\0")
        long[member.type] = name.decode("utf-8", "surrogateescape")
        content.pass_over()


class _Content:
    """The content of one member of an archive.

    Raises:
        tarfile.TarError: the archive ends in it.
    """

    def __init__(self, source: _Counted, size: int) -> None:
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


def _unpack_one(member: tarfile.TarInfo, content: _Content, top: int) -> str:
    """Unpack a member; returns why it is left out, or an empty text."""
    names = [name for name in member.name.split("/") if name not in ("", ".")]
    if member.name.startswith("/") or "\0" in member.name or ".." in names:
        return "its name leads out of the directory"
    if not names:
        return ""
    if member.issym() or member.islnk():
        return "is a link"
    if not member.isdir() and not member.isreg():
        return "is no file, directory or link"
    try:
        with _parent_of(top, names) as parent:
            if member.isdir():
                _make_directory(parent, names[-1])
            else:
                _write(parent, names[-1], content, member)
    except NotADirectoryError:
        return "its name leads through a link or a file"
    except IsADirectoryError:
        return "a directory has its name"
    except FileExistsError:
        return "something that is no directory has its name"
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


def _write(parent: int, name: str, content: _Content, member: tarfile.TarInfo) -> None:
    with NewFile(os.dup(parent), name) as new:
        while data := content.read(COPY_BYTES):
            write_whole(new.file, data)
        with suppress(OSError, OverflowError):
            os.utime(new.file.fileno(), (member.mtime, member.mtime))
        new.keep(member.mode)


def new_file(path: str) -> NewFile:
    """A file that takes the place of an older one, or of a link, when it is kept."""
    directory, name = os.path.split(path)
    flags = os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC
    return NewFile(os.open(directory or ".", flags), name)


class NewFile:
    """A file that is being written, beside its place. Without `keep` there is nothing of it.

    Args:
        directory: descriptor of the directory around it; closed with it.
    """

    def __init__(self, directory: int, name: str) -> None:
        self._directory = directory
        self._name = name
        self._temporary = f".nsm-{os.urandom(8).hex()}"
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        try:
            descriptor = os.open(self._temporary, flags, 0o600, dir_fd=directory)
        except BaseException:
            os.close(directory)
            raise
        self.file = open(descriptor, "wb", buffering=0)  # noqa: SIM115  # this is a context manager

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.file.close()
        if self._temporary:
            with suppress(OSError):
                os.unlink(self._temporary, dir_fd=self._directory)
        os.close(self._directory)

    def keep(self, permissions: int) -> None:
        """Put it in its place, with these permissions as far as the umask lets them."""
        mask = os.umask(0o077)
        os.umask(mask)
        os.fchmod(self.file.fileno(), permissions & 0o777 & ~mask)
        os.rename(
            self._temporary, self._name, src_dir_fd=self._directory, dst_dir_fd=self._directory
        )
        self._temporary = ""


def write_whole(file: RawIOBase, data: bytes) -> None:
    """Write all of it to a file that is not buffered."""
    left = memoryview(data)
    while left:
        left = left[file.write(left) or 0 :]
