"""Files below a directory with untrusted content, by descriptor; blocks.

No function here follows a link, leaves the directory, crosses into another file system or waits for
a FIFO, whatever somebody puts in its way meanwhile (openat2(2); Linux 5.6).
"""

from __future__ import annotations

import ctypes
import errno
import os
import secrets
import stat
import struct
from collections.abc import Generator
from contextlib import contextmanager, suppress

_OPENAT2 = 437  # on every architecture (asm-generic/unistd.h)
_NO_XDEV, _NO_MAGICLINKS, _NO_SYMLINKS, _BENEATH = 1, 2, 4, 8  # linux/openat2.h
_RESOLVE = _NO_XDEV | _NO_MAGICLINKS | _NO_SYMLINKS | _BENEATH
_AGAIN = 8
"""Attempts if the kernel cannot tell because something was renamed meanwhile (EAGAIN)."""

RENAME_NOREPLACE, RENAME_EXCHANGE = 1, 2

READ = os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
PIECE_BYTES = 256 * 1024

_libc = ctypes.CDLL(None, use_errno=True)


def open_below(root: int, path: str, flags: int, mode: int = 0) -> int:
    """Open a path below a directory.

    Args:
        root: descriptor of the directory.
        path: relative to the directory; empty for the directory itself.
        flags: as of open(2).

    Raises:
        OSError: it cannot be opened; ELOOP for a link, EXDEV if it lies elsewhere.
    """
    how = struct.pack("QQQ", flags | os.O_CLOEXEC, mode, _RESOLVE)
    name = os.fsencode(path or ".")
    for _ in range(_AGAIN):
        fd: int = _libc.syscall(_OPENAT2, root, name, how, ctypes.c_size_t(len(how)))
        if fd >= 0:
            return fd
        error = ctypes.get_errno()
        if error != errno.EAGAIN:
            raise OSError(error, os.strerror(error), path)
    raise OSError(errno.EAGAIN, os.strerror(errno.EAGAIN), path)


@contextmanager
def parent_of(root: int, path: str) -> Generator[tuple[int, str]]:
    """Open the directory of a path. Gives its descriptor, and the name in it."""
    parent, _, name = path.rpartition("/")
    fd = open_below(root, parent, DIRECTORY)
    try:
        yield fd, name
    finally:
        os.close(fd)


def look(root: int, path: str) -> os.stat_result | None:
    """Read the status of a path; None if nothing is there, or if a parent is no directory."""
    try:
        with parent_of(root, path) as (parent, name):
            return os.stat(name, dir_fd=parent, follow_symlinks=False)
    except OSError as error:
        if error.errno in (errno.ENOENT, errno.ENOTDIR, errno.ELOOP):
            return None
        raise


def read_link(root: int, path: str) -> str:
    """Read the target of a symbolic link."""
    with parent_of(root, path) as (parent, name):
        return os.readlink(name, dir_fd=parent)


def open_file(root: int, path: str) -> int:
    """Open a regular file to read.

    Raises:
        OSError: it is no regular file (EINVAL), or cannot be opened.
    """
    fd = open_below(root, path, READ)
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise OSError(errno.EINVAL, "not a regular file", path)
    return fd


def rename(parent: int, old: str, new: str, flags: int) -> None:
    """renameat2(2) within one directory.

    Raises:
        OSError: EINVAL if the file system does not support it.
    """
    if _libc.renameat2(parent, os.fsencode(old), parent, os.fsencode(new), flags) != 0:
        error = ctypes.get_errno()
        raise OSError(error, os.strerror(error), new)


def fresh_name() -> str:
    """Make a random name that nobody can predict."""
    return f".nsm-{secrets.token_hex(8)}"


@contextmanager
def acting_as(user: tuple[int, int] | None) -> Generator[None]:
    """Let this thread access files as another user, without root's rights.

    Args:
        user: user and group; None for no change.
    """
    if user is None:
        yield
        return
    # setfsuid(2): the C library leaves it to the thread, unlike setuid(2).
    _libc.setfsgid(user[1])
    _libc.setfsuid(user[0])
    try:
        if _libc.setfsuid(-1) != user[0] or _libc.setfsgid(-1) != user[1]:
            raise PermissionError(errno.EPERM, f"cannot write files as user {user[0]}")
        yield
    finally:
        _libc.setfsuid(os.geteuid())
        _libc.setfsgid(os.getegid())


def remove(parent: int, name: str) -> None:
    """Remove a file that may be gone already."""
    with suppress(FileNotFoundError):
        os.unlink(name, dir_fd=parent)
