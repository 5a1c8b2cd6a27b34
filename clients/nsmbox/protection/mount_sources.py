"""Sources of mounts that lie where boxes can write, opened so that no link can exchange them.

bubblewrap finds its sources by path. Another box in the same or in an outer directory can put a
link to `~/.ssh` where a directory was, between the moment in which the plan was made and the one
in which it is mounted. A descriptor that was opened without following any link stays what it is.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Sequence

from nsmbox.model.plan import BoxError, Mount
from nsmbox.protection.secrets import printable

_MAX_PROGRAM_BYTES = 4 * 1024 * 1024


def is_known_to(program: str) -> bool:
    """Return whether a bwrap takes descriptors of sources: 0.10 and newer, and Debian 12's 0.8.

    Args:
        program: its path. One that hides behind a script is taken for an older one.
    """
    try:
        with open(program, "rb") as file:
            return b"ro-bind-fd" in file.read(_MAX_PROGRAM_BYTES)
    except OSError:
        return False


def open_sources(mounts: Sequence[Mount]) -> dict[int, int]:
    """Open the sources of all `linkless` mounts.

    Returns:
        Descriptors (O_PATH, inherited by exec) by index in `mounts`. They are the caller's.

    Raises:
        BoxError: one is gone, or there is a symbolic link on the way to it.
    """
    found: dict[int, int] = {}
    try:
        for index, mount in enumerate(mounts):
            if mount.linkless and mount.kind in ("bind", "ro-bind"):
                found[index] = open_linkless(mount.source)
                os.set_inheritable(found[index], True)
    except OSError as error:
        for fd in found.values():
            os.close(fd)
        name = printable(os.fsdecode(error.filename))
        raise BoxError(
            f"{name} cannot be shown as it was when it was looked at: {error.strerror}.",
            hint="See who changes it (another box may run there), and start again.",
        ) from error
    return found


def open_linkless(path: str) -> int:
    """An O_PATH descriptor of what lies at a path with no symbolic link on it.

    Component by component: openat2(2) with RESOLVE_NO_SYMLINKS would be one call, for which Python
    has no function.

    Args:
        path: absolute and normalised.

    Raises:
        OSError: it is not there (ENOENT), or there is a link on the way (ELOOP); `filename` is
            the whole path.
    """
    fd = os.open("/", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    names = [name for name in path.split("/") if name]
    try:
        for name in names:
            deeper = os.open(name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=fd)
            os.close(fd)
            fd = deeper
            _check_no_link(fd)
    except OSError as error:
        os.close(fd)
        raise OSError(error.errno, error.strerror, path) from error
    return fd


def _check_no_link(fd: int) -> None:
    # With O_PATH, O_NOFOLLOW opens a link itself (open(2)).
    if stat.S_ISLNK(os.fstat(fd).st_mode):
        raise OSError(errno.ELOOP, "a symbolic link has come on the way to it")
