"""Files below a directory with untrusted content, by descriptor, and new files in one; blocks.

No function here follows a link, leaves the directory or waits for a FIFO, whatever somebody puts in
its way meanwhile: by openat2(2), or name by name where a container forbids that call. Nor do they
cross into another file system, unless they are asked to (`mounts`).
"""

from __future__ import annotations

import errno
import os
import stat
import struct
import sys
from contextlib import contextmanager, suppress
from functools import cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import ctypes
    from collections.abc import Callable, Generator

_OPENAT2 = 437  # on every architecture (asm-generic/unistd.h)
_NO_XDEV, _NO_MAGICLINKS, _NO_SYMLINKS, _BENEATH = 1, 2, 4, 8  # linux/openat2.h
_RESOLVE = _NO_MAGICLINKS | _NO_SYMLINKS | _BENEATH
_CACHED = 0x20
_EMPTY_PATH, _DONT_SYNC, _INODE = 0x1000, 0x4000, 0x100  # linux/fcntl.h, linux/stat.h
_AGAIN = 8
"""Attempts if the kernel cannot tell because something was renamed meanwhile (EAGAIN)."""

READ = os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC

_AROUND = DIRECTORY | (os.O_PATH if sys.platform == "linux" else 0)
"""A directory in which names are only looked up: its user need not have the right to read it."""


@cache
def _libc() -> ctypes.CDLL:
    import ctypes  # noqa: PLC0415 - see below

    return ctypes.CDLL(None, use_errno=True)


@cache
def _openat2() -> Callable[[int, bytes, bytes], int]:
    """The system call, which Python has no function for. It returns a negative number of an error.

    Loaded late: `ctypes` takes 5 ms to import, and most clients open no such file.
    """
    import ctypes  # noqa: PLC0415 - see above

    libc = _libc()

    def call(root: int, path: bytes, how: bytes) -> int:
        fd: int = libc.syscall(_OPENAT2, root, path, how, ctypes.c_size_t(len(how)))
        return fd if fd >= 0 else -ctypes.get_errno()

    return call


def open_below(root: int, path: str, flags: int, mode: int = 0, *, mounts: bool = False) -> int:
    """Open a path below a directory.

    Args:
        root: descriptor of the directory.
        path: relative to the directory; empty for the directory itself.
        flags: as of open(2).
        mounts: it may lie in another file system that is mounted there.

    Raises:
        OSError: it cannot be opened; ELOOP for a link, EXDEV if it lies elsewhere.
    """
    if sys.platform != "linux":
        return _open_by_names(root, path, flags, mode, mounts=mounts)
    how = struct.pack(
        "QQQ", flags | os.O_CLOEXEC, mode, _RESOLVE if mounts else _RESOLVE | _NO_XDEV
    )
    name = os.fsencode(path or ".")
    for _ in range(_AGAIN):
        fd = _openat2()(root, name, how)
        if fd >= 0:
            return fd
        error = -fd
        if error in (errno.ENOSYS, errno.EPERM):  # of a container's filter; open(2) tells the rest
            return _open_by_names(root, path, flags, mode, mounts=mounts)
        if error != errno.EAGAIN:
            raise OSError(error, os.strerror(error), path)
    raise OSError(errno.EAGAIN, os.strerror(errno.EAGAIN), path)


def known_identity(path: str) -> tuple[int, int] | None:
    """Return the device and inode that an absolute path leads to, if the kernel knows them without
    asking a disk, which might not answer.
    """
    import ctypes  # noqa: PLC0415 - as above

    statx = getattr(_libc(), "statx", None)  # musl has it since 1.2.5
    if statx is None:
        return None
    how = struct.pack("QQQ", os.O_PATH | os.O_CLOEXEC, 0, _CACHED)
    fd = _openat2()(-1, os.fsencode(path), how)
    if fd < 0:
        return None
    found = ctypes.create_string_buffer(256)  # struct statx
    try:
        if statx(fd, b"", _EMPTY_PATH | _DONT_SYNC, _INODE, found):
            return None
    finally:
        os.close(fd)
    inode, major, minor = struct.unpack_from("32xQ96xII", found)
    return os.makedev(major, minor), inode


def _open_by_names(root: int, path: str, flags: int, mode: int, *, mounts: bool) -> int:
    """Open a path as `open_below` does, with one call for each name."""
    names = [name for name in path.split("/") if name not in ("", ".")] or ["."]
    if path.startswith("/") or ".." in names:
        raise OSError(errno.EXDEV, os.strerror(errno.EXDEV), path)
    device = os.fstat(root).st_dev
    fd = os.dup(root)
    try:
        for number, name in enumerate(names, 1):
            wanted = flags if number == len(names) else _AROUND
            try:
                deeper = os.open(name, wanted | os.O_NOFOLLOW | os.O_CLOEXEC, mode, dir_fd=fd)
            except NotADirectoryError:
                if stat.S_ISLNK(os.stat(name, dir_fd=fd, follow_symlinks=False).st_mode):
                    raise OSError(errno.ELOOP, os.strerror(errno.ELOOP)) from None
                raise
            os.close(fd)
            fd = deeper
            if not mounts and os.fstat(fd).st_dev != device:
                raise OSError(errno.EXDEV, os.strerror(errno.EXDEV))  # noqa: TRY301 - gets the path
    except OSError as error:
        os.close(fd)
        raise OSError(error.errno, error.strerror, path) from error
    return fd


@contextmanager
def opened_around(path: str, *, make: bool = False) -> Generator[tuple[int, str]]:
    """Open the directory from which on a path is followed without links: the working directory,
    or, if the path does not lie below that, the directory of the path.

    Gives its descriptor, and the path from there.

    Args:
        make: make that directory if it is missing.
    """
    whole = os.path.abspath(path)
    try:
        here = os.getcwd()
    except FileNotFoundError:  # somebody removed it: nothing lies below it
        here = ""
    if here and os.path.commonpath((whole, here)) == here:
        directory, name = here, os.path.relpath(whole, here)
    else:
        directory, name = os.path.split(whole)
        if make:
            with suppress(FileExistsError):  # of a file, which says so below
                os.makedirs(directory)
    root = os.open(directory, _AROUND)
    try:
        yield root, "" if name == "." else name
    except OSError as error:
        if isinstance(error.filename, str) and not os.path.isabs(error.filename):
            error.filename = path  # as it was named, and not the part below that directory
        raise
    finally:
        os.close(root)


@contextmanager
def parent_of(root: int, path: str, *, mounts: bool = False) -> Generator[tuple[int, str]]:
    """Open the directory of a path. Gives its descriptor, and the name in it."""
    parent, _, name = path.rpartition("/")
    fd = open_below(root, parent, _AROUND, mounts=mounts)
    try:
        yield fd, name
    finally:
        os.close(fd)


def look(root: int, path: str, *, mounts: bool = False) -> os.stat_result | None:
    """Read the status of a path; None if nothing is there, or if a parent is no directory."""
    try:
        with parent_of(root, path, mounts=mounts) as (parent, name):
            return os.stat(name, dir_fd=parent, follow_symlinks=False)
    except OSError as error:
        if error.errno in (errno.ENOENT, errno.ENOTDIR, errno.ELOOP):
            return None
        raise


def read_link(root: int, path: str, *, mounts: bool = False) -> str:
    """Read the target of a symbolic link."""
    with parent_of(root, path, mounts=mounts) as (parent, name):
        return os.readlink(name, dir_fd=parent)


def make_directories(root: int, path: str, *, mounts: bool = False) -> None:
    """Make a directory and those around it, as far as they are missing; ELOOP if one is a link."""
    names = path.split("/")
    for count in range(1, len(names) + 1):
        with parent_of(root, "/".join(names[:count]), mounts=mounts) as (around, name):
            try:
                os.mkdir(name, dir_fd=around)
            except FileExistsError:
                found = os.stat(name, dir_fd=around, follow_symlinks=False)
                if stat.S_ISLNK(found.st_mode):
                    raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), path) from None
                if not stat.S_ISDIR(found.st_mode):
                    raise


def open_file(root: int, path: str, *, mounts: bool = False) -> int:
    """Open a regular file to read.

    Raises:
        OSError: it is no regular file (EINVAL), or cannot be opened.
    """
    fd = open_below(root, path, READ, mounts=mounts)
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise OSError(errno.EINVAL, "not a regular file", path)
    return fd


def read_file(path: str, most: int, *, root: int | None = None, links: bool = False) -> bytes:
    """Read at most so many bytes from the beginning of a regular file that others may have written.

    It may be a pipe, a device, or a link to what only the user may read.

    Args:
        root: descriptor of a directory; `path` is below it, with no link on its way.
        links: the path may be a link, in a directory to which only the user writes.

    Raises:
        OSError: it is no regular file (EINVAL), is a link (ELOOP), or cannot be read.
    """
    if root is None:
        fd = os.open(path, READ if links else READ | os.O_NOFOLLOW)
    else:
        fd = open_below(root, path, READ, mounts=True)
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise OSError(errno.EINVAL, "it is not a regular file", path)
    with open(fd, "rb") as file:
        return file.read(most)


class NewFile:
    """A file that is being written, and has its name when `keep` returns, and not before.

    Until then it has none, so that nothing is left behind by whatever ends this program, or a name
    of its own where the file system can do nothing else. What lies at the name is replaced, also a
    link. Permissions are those of the user alone, unless somebody changes them.

    Args:
        directory: descriptor of the directory, which is closed with the file.
    """

    def __init__(self, directory: int, name: str) -> None:
        self._directory = directory
        self._name = name
        self._temporary = ""
        try:
            self.descriptor = self._create()
        except BaseException:
            os.close(directory)
            raise

    def _create(self) -> int:
        flags = os.O_WRONLY | os.O_CLOEXEC
        try:
            return os.open(".", flags | os.O_TMPFILE, 0o600, dir_fd=self._directory)
        except OSError as error:
            # EISDIR is what kernels and file systems say that do not know of it: open(2).
            if error.errno not in (errno.EOPNOTSUPP, errno.EISDIR, errno.EINVAL):
                raise
        name = _other_name()
        flags |= os.O_CREAT | os.O_EXCL
        descriptor = os.open(name, flags, 0o600, dir_fd=self._directory)
        self._temporary = name
        return descriptor

    def keep(self) -> None:
        """Give the file its name."""
        if not self._temporary:
            unnamed = f"/proc/self/fd/{self.descriptor}"
            try:
                # With a descriptor of the directory, since only then os.link follows that link.
                os.link(unnamed, self._name, dst_dir_fd=self._directory)
            except FileExistsError:
                name = _other_name()
                os.link(unnamed, name, dst_dir_fd=self._directory)
                self._temporary = name
            else:
                return
        directory = self._directory
        os.rename(self._temporary, self._name, src_dir_fd=directory, dst_dir_fd=directory)
        self._temporary = ""

    def close(self) -> None:
        """Close the file; without `keep` there is nothing of it."""
        os.close(self.descriptor)
        if self._temporary:
            with suppress(OSError):
                os.unlink(self._temporary, dir_fd=self._directory)
        os.close(self._directory)


def _other_name() -> str:
    return f".nsm-{os.urandom(8).hex()}"
