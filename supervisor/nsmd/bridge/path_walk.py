"""The way to a file, one component after another, by descriptors.

Each directory is opened in the one before it, and links are followed by hand. So the parts that
were checked are the parts that the way led through, whatever is exchanged meanwhile (openat(2),
O_PATH). It needs only the standard library, since the monitor uses it, too.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable

MAX_LINKS = 40
"""Symbolic links to follow in one path, as many as Linux does."""

Step = Callable[[str, os.stat_result, int], None]
"""Gets a part of the way: its absolute path (without links before it), its status, and a descriptor
of it (O_PATH) that is closed later. It may raise.
"""


Way = tuple[int, ...]
"""The way of a path: for each link, and last for the file, device, inode, and the time when its
content, mode, owner or name changed last (`st_ctime_ns`). An exchange that was undone gives another
way: links are new, and moving a name changes that time. Directories are not part of it, since their
times change with everything in them.
"""


Ways = tuple[tuple[str, Way], ...]
"""Paths that are followed to start a program, each with its way: its file and, for a script, its
interpreter, and that one's if it is a script.
"""


def state_of(status: os.stat_result) -> Way:
    """The part of a way for one link or file."""
    return status.st_dev, status.st_ino, status.st_ctime_ns


def state_on_way(part: str, status: os.stat_result) -> Way:
    """Record a part of the path in its way: the state of a link. Links of /proc differ for each
    process.
    """
    if not stat.S_ISLNK(status.st_mode) or part.startswith("/proc/"):
        return ()
    return state_of(status)


def walk(path: str, step: Step = lambda _part, _status, _fd: None) -> int:
    """Follow an absolute path to its end. Returns a descriptor for queries only (O_PATH), which the
    caller owns; `step` is called for every part, `/` first: directories, links, and the target.
    """
    # First the whole path: this mounts file systems that are mounted on demand, and the walk below
    # would not.
    os.stat(path)
    here, fd = "/", os.open("/", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        step(here, os.fstat(fd), fd)
        rest = path.split("/")[::-1]
        links = 0
        while rest:
            name = rest.pop()
            if name in ("", "."):
                continue
            flags = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC
            child = os.open(name, flags, dir_fd=fd)
            status = os.fstat(child)
            if stat.S_ISLNK(status.st_mode):
                try:
                    step(os.path.join(here, name), status, child)
                    links += 1
                    if links > MAX_LINKS:
                        raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), path)
                    target = os.readlink("", dir_fd=child)
                finally:
                    os.close(child)
                rest += target.split("/")[::-1]
                if not target.startswith("/"):
                    continue
                here, child = "/", os.open("/", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
            elif name == "..":  # in a link's target
                here = os.path.dirname(here)
            else:
                here = os.path.join(here, name)
            fd, before = child, fd
            os.close(before)
            if here != "/":
                step(here, status, fd)
    except BaseException:
        os.close(fd)
        raise
    return fd


def way_to(path: str) -> Way:
    """Find the way of an absolute path."""
    way: Way = ()

    def step(part: str, status: os.stat_result, _fd: int) -> None:
        nonlocal way
        way += state_on_way(part, status)

    fd = walk(path, step)
    try:
        return way + state_of(os.fstat(fd))
    finally:
        os.close(fd)


def why_another(path: str, expected: Way) -> str | None:
    """Return why a path now leads elsewhere; None if it does not."""
    try:
        found = way_to(path)
    except OSError as error:
        return f"{path} is not what was checked any more: {error.strerror}"
    if found == expected:
        return None
    if found[-3:-1] != expected[-3:-1]:
        return f"{path} leads to another file than the one that was checked"
    return f"{path}, or a link on the way to it, was changed after it had been checked"


def why_any_other(ways: Ways) -> str | None:
    """Return why one of several paths now leads elsewhere; None if none does."""
    reasons = (why_another(path, expected) for path, expected in ways)
    return next((reason for reason in reasons if reason is not None), None)
