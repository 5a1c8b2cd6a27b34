"""Changes to files in a directory with untrusted content, by its descriptor; blocks.

`nsm.below` opens that directory.
"""

from __future__ import annotations

import ctypes
import errno
import os
import secrets
from collections.abc import Generator
from contextlib import contextmanager, suppress

RENAME_NOREPLACE, RENAME_EXCHANGE = 1, 2

PIECE_BYTES = 256 * 1024

_libc = ctypes.CDLL(None, use_errno=True)


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
