"""Local files that are copied: read as they are, written whole or not at all."""

from __future__ import annotations

import errno
import os
import stat
import sys
from contextlib import ExitStack, contextmanager, suppress
from typing import TYPE_CHECKING

from nsm import below
from nsm.wire.errors import BadRequestError, FileError
from nsm.wire.tuples import NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Generator
    from typing import IO, Self

    from nsm.below import NewFile


class LocalFileError(FileError):
    """A file here cannot be read or written.

    Args:
        whole: it would have appeared whole or not at all.
    """

    def __init__(self, path: str, error: OSError, doing: str, *, whole: bool = False) -> None:
        hint = ""
        if whole and error.errno in (errno.ENOSPC, errno.EDQUOT):
            hint = "Nothing of the copy is left, and an older file is as it was. Make room."
        super().__init__(
            f"{path} can't be {doing}: {error.strerror}",
            hint=hint,
            data={"errno": errno.errorcode.get(error.errno or 0, "")},
        )


class LinkError(FileError):
    """A symbolic link is where a file was to be read or written.

    Args:
        doing: `read` or `written`.
    """

    def __init__(self, path: str, doing: str = "written") -> None:
        try:
            where = f"is a symbolic link to {os.readlink(path)}"
        except OSError:
            where = "lies behind a symbolic link"
        super().__init__(
            f"{path} {where}, and nothing was {doing} through it",
            hint="Name the file itself, or add --follow.",
        )


class OpenedFile(NamedTuple):
    """An open file that is to be copied.

    Attributes:
        size: bytes; None where it is no regular file.
        permissions: None where it is no regular file.
        read: up to a number of bytes; none at the end.
    """

    size: int | None
    permissions: int | None
    read: Callable[[int], bytes]


def open_here(path: str, flags: int, *, follow: bool) -> int:
    """Open a file or a directory that somebody named, to read it.

    Code in a session or a box may have put a link in its place, to have another file copied. It
    may have done so below the working directory; other directories are taken as they are named.

    Args:
        flags: as of open(2).
        follow: read through links, as cp(1) does.

    Raises:
        LinkError: there is a link, and `follow` is False.
        OSError: it can't be opened.
    """
    directory = os.path.dirname(os.path.abspath(path))
    if follow or directory in ("/dev", "/dev/fd") or directory.startswith("/proc/"):
        return os.open(path, flags | os.O_CLOEXEC)  # links there are the kernel's, as for <(...)
    with no_link(path, "read"), below.opened_around(path) as (root, name):
        return below.open_below(root, name, flags, mounts=True)


@contextmanager
def open_input(path: str) -> Generator[IO[bytes]]:
    """Open a file that a command reads; `-` is standard input, which stays open.

    Raises:
        BadRequestError: it can't be opened.
    """
    if path == "-":
        if not sys.stdin:  # whoever started us has closed it
            raise BadRequestError("standard input is closed", hint="Name a file.")
        yield sys.stdin.buffer
        return
    with ExitStack() as owned:
        try:
            file = owned.enter_context(open(open_here(path, os.O_RDONLY, follow=False), "rb"))
        except LinkError as error:
            raise BadRequestError(error.message, hint="Name the file itself.") from error
        except OSError as error:
            message = f"the file {path!r} can't be read: {error.strerror}"
            raise BadRequestError(message, hint="Check its name and mode.") from error
        yield file


@contextmanager
def no_link(path: str, doing: str) -> Generator[None]:
    """Raise `LinkError` where the kernel finds a link."""
    try:
        yield
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise LinkError(path, doing) from error
        raise


def is_directory(path: str, *, follow: bool) -> bool:
    """Return whether a path is that of a directory.

    Raises:
        LinkError: as `open_here`.
    """
    try:
        os.close(open_here(path, os.O_PATH | os.O_DIRECTORY, follow=follow))
    except OSError:
        return False
    return True


@contextmanager
def source(path: str, *, follow: bool = False) -> Generator[OpenedFile]:
    """Open a file to be copied; ``-`` is standard input. Pipes and devices are read to their end.

    Args:
        follow: as of `open_here`.

    Raises:
        LinkError: a link is there.
        LocalFileError: it can't be read, now or later.
    """
    with told(path, "read"):
        if path == "-":
            descriptor = os.dup(sys.stdin.fileno() if sys.stdin else -1)
        else:
            descriptor = open_here(path, os.O_RDONLY | os.O_NOCTTY, follow=follow)
    try:
        mode = os.fstat(descriptor).st_mode

        def read(count: int) -> bytes:
            with told(path, "read"):
                return os.read(descriptor, count)

        if stat.S_ISREG(mode) and path != "-":
            # Bits by which a program runs as another user or group are not handed to a jail.
            yield OpenedFile(os.fstat(descriptor).st_size, mode & 0o777, read)
        else:
            yield OpenedFile(None, None, read)
    finally:
        os.close(descriptor)


class LocalTarget:
    """A local file that is being written. Without `keep` there is nothing of it.

    A regular file appears at its place when it is whole: until then it has no name, so nothing is
    left behind by whatever ends this program, and an older file stays as it was, but for its
    content. Pipes and devices are written to. No link is written through unasked: somebody else,
    code in a box for one, may have put it there to have another file overwritten.

    Args:
        path: path of the file itself, not of its directory.
        follow: write through links, as cp(1) does.
        into: the directory was named, and not the file: it must be no link either.
        below: the directory that the file is in, open. Only a regular file is replaced then.

    Raises:
        LinkError: a link is there.
        LocalFileError: it can't be written.
    """

    def __init__(
        self, path: str, *, follow: bool = False, into: bool = False, below: int | None = None
    ) -> None:
        self._path = path
        self._follow = follow
        self._into = into
        self._below = below
        self._permissions: int | None = None
        self._new: NewFile | None = None
        with told(path, "written", whole=True):
            self._open()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._new is not None:
            self._new.close()
        else:
            os.close(self._descriptor)

    def write(self, data: bytes) -> None:
        """Write all of it.

        Raises:
            LocalFileError: that's not possible.
        """
        with told(self._path, "written", whole=self._new is not None):
            write_all(self._descriptor, data)

    def expect(self, size: int) -> None:
        """Refuse a file that cannot fit.

        Raises:
            FileError: it has more bytes than are free.
        """
        if self._new is not None:
            check_room(self._path, self._descriptor, size)

    def date(self, modified_ns: int) -> None:
        """Set the time of the last change, if that is possible."""
        with suppress(OSError, OverflowError):
            os.utime(self._descriptor, ns=(modified_ns, modified_ns))

    def keep(self, permissions: int) -> None:
        """Put the file in its place.

        Args:
            permissions: permissions of a new file, to which the user's umask applies.

        Raises:
            LocalFileError: it can't be put there.
        """
        if self._new is None:
            return
        if self._permissions is None:
            self._permissions = permissions & 0o777 & ~_umask()
        with told(self._path, "written", whole=True):
            with suppress(PermissionError):  # of a file system that has no permissions
                os.fchmod(self._descriptor, self._permissions)
            self._new.keep()

    def _open(self) -> None:
        if self._below is not None:
            self._open_below(self._below)
            return
        try:
            mode = os.stat(self._path, follow_symlinks=self._follow).st_mode
        except FileNotFoundError:
            if os.path.islink(self._path):
                raise  # cp(1) writes to no place that a link only promises
        else:
            if stat.S_ISLNK(mode):
                raise LinkError(self._path)
            if not stat.S_ISREG(mode):
                flags = os.O_WRONLY | os.O_NOCTTY  # a link may have come since
                self._descriptor = open_here(self._path, flags, follow=self._follow)
                return
            self._replace(mode, self._path)
        path = os.path.realpath(self._path) if self._follow else self._path
        parent, base = os.path.split(path)
        flags = os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC
        # What is renamed to the name takes a link's place, and does not go through it.
        if self._follow:
            directory = os.open(parent or ".", flags)
        elif self._into:
            with no_link(parent, "written"), below.opened_around(parent) as (root, name):
                directory = below.open_below(root, name, flags, mounts=True)
        else:
            with no_link(path, "written"), below.opened_around(path) as (root, name):
                inside = os.path.dirname(name)
                directory = below.open_below(root, inside, flags, mounts=True)
        self._begin(directory, base)

    def _open_below(self, directory: int) -> None:
        name = os.path.basename(self._path)
        with suppress(FileNotFoundError):
            mode = os.stat(name, dir_fd=directory, follow_symlinks=False).st_mode
            if stat.S_ISLNK(mode):
                raise LinkError(self._path)
            if not stat.S_ISREG(mode):
                raise FileError(f"{self._path} is there, and is not a regular file")
            self._replace(mode, name, directory)
        self._begin(os.dup(directory), name)

    def _replace(self, mode: int, name: str, directory: int | None = None) -> None:
        """A regular file is there, and is to be replaced."""
        self._permissions = mode & 0o777
        if not os.access(name, os.W_OK, dir_fd=directory):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))

    def _begin(self, directory: int, name: str) -> None:
        self._new = below.NewFile(directory, name)
        self._descriptor = self._new.descriptor


def write_all(descriptor: int, data: bytes) -> None:
    """write(2) until nothing is left."""
    with memoryview(data) as view:
        written = 0
        while written < len(view):
            written += os.write(descriptor, view[written:])


def check_room(path: str, descriptor: int, size: int) -> None:
    """
    Raises:
        FileError: so many bytes do not fit on the file system that is open there.
    """
    status = os.fstatvfs(descriptor)
    free = status.f_bavail * status.f_frsize
    if status.f_blocks and size > free:
        raise FileError(
            f"{path} can't be written: {size} bytes do not fit, {free} are free there",
            hint="Make room, or copy to another place.",
        )


def _umask() -> int:
    mask = os.umask(0o077)
    os.umask(mask)
    return mask


@contextmanager
def told(path: str, doing: str, *, whole: bool = False) -> Generator[None]:
    """Raise what the kernel refuses as `LocalFileError`."""
    try:
        yield
    except BrokenPipeError:
        raise  # nobody reads any more: an end, and no mistake
    except OSError as error:
        name = "standard input" if path == "-" else path
        raise LocalFileError(name, error, doing, whole=whole) from error
