"""Sources of mounts that lie where boxes can write, opened so that no link can exchange them.

bubblewrap finds its sources by path. Another box in the same or in an outer directory can put a
link to `~/.ssh` where a directory was, between the moment in which the plan was made and the one
in which it is mounted. A descriptor that was opened without following any link stays what it is.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Collection, Mapping, Sequence

from nsm.dataclass import replace
from nsm.paths import open_linkless
from nsmbox.model.plan import BoxError, Mount
from nsmbox.protection.secrets import printable

MAX_COPY_BYTES = 1024 * 1024

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
    """Open the sources of all `linkless` mounts, and look whether those without a source have a
    mount point of their own: bwrap would make it at the target of a link.

    Returns:
        Descriptors (O_PATH, inherited by exec) by index in `mounts`. They are the caller's.

    Raises:
        OSError: this process may open no more.
    """
    found: dict[int, int] = {}
    try:
        for index, mount in enumerate(mounts):
            if mount.linkless and mount.kind in ("bind", "ro-bind"):
                found[index] = open_linkless(mount.source)
                os.set_inheritable(found[index], True)
            elif mount.kind == "link":
                _check_link(mount)
            elif mount.linkless:
                os.close(open_linkless(mount.target))
    except OSError as error:
        for fd in found.values():
            os.close(fd)
        if error.errno == errno.EMFILE:
            raise
        name = printable(os.fsdecode(error.filename))
        raise BoxError(
            f"{name} cannot be shown as it was when it was looked at: {error.strerror}.",
            hint="See who changes it (another box may run there), and start again.",
        ) from error
    return found


def _check_link(mount: Mount) -> None:
    """Make sure that a symbolic link says what it said when the plan was made."""
    above, name = os.path.split(mount.target)
    fd = open_linkless(above)
    try:
        says = os.readlink(name, dir_fd=fd)
    except OSError as error:
        raise OSError(error.errno, error.strerror, mount.target) from error
    finally:
        os.close(fd)
    if says != mount.source:
        raise OSError(errno.ELOOP, "the link leads elsewhere", mount.target)


def replaced(mounts: Sequence[Mount], opened: Mapping[int, int]) -> list[int]:
    """Return the indexes of mounts in whose places something else lies by now."""
    return [
        index
        for index, fd in opened.items()
        if _identity(mounts[index].source) != _identity(f"/proc/self/fd/{fd}", follow=True)
    ]


def _identity(path: str, *, follow: bool = False) -> tuple[int, int] | None:
    try:
        found = os.stat(path, follow_symlinks=follow)
    except OSError:
        return None
    return found.st_dev, found.st_ino


def copied(
    mounts: Sequence[Mount], opened: Mapping[int, int], indexes: Collection[int]
) -> tuple[tuple[Mount, ...], dict[int, int]]:
    """Have a box see copies of some of its read-only files, if they are small: bwrap fails if a
    file has been replaced since it was opened, and mounts a copy in no time.
    """
    found, left = list(mounts), dict(opened)
    for index in indexes:
        if (copy := _copy(mounts[index], opened[index])) is not None:
            found[index] = copy
            os.set_inheritable(left.pop(index), False)
    return tuple(found), left


def _copy(mount: Mount, fd: int) -> Mount | None:
    status = os.fstat(fd)
    if mount.kind != "ro-bind" or not stat.S_ISREG(status.st_mode):
        return None
    try:
        with open(f"/proc/self/fd/{fd}", "rb") as file:
            data = file.read(MAX_COPY_BYTES + 1)
    except OSError:
        return None
    if len(data) > MAX_COPY_BYTES:
        return None
    return replace(mount, kind="ro-file", source="", data=data, mode=status.st_mode & 0o555)
