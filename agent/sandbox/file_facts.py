"""Facts of files beside their content, for undo, and steps with files by their directory.

Every name is looked up in an open directory, and no link is followed: code of the session may
rename things meanwhile.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Generator, Mapping


DEEPEST_REMOVED = 150
"""Directories around a file that is removed; each takes a descriptor."""

ATTRIBUTES = ("user.", "system.posix_acl_")
"""Beginnings of the names of extended attributes that code can change."""

OVERLAY_ATTRIBUTES = "user.overlay."
"""Beginning of the names of those that the kernel keeps in an overlay's layer and does not show."""

OPEN_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


def attributes_of(fd: int) -> dict[str, bytes]:
    """Extended attributes of an open file or directory, as code can change them."""
    try:
        names = [name for name in os.listxattr(fd) if name.startswith(ATTRIBUTES)]
        return {
            name: os.getxattr(fd, name) for name in names if not name.startswith(OVERLAY_ATTRIBUTES)
        }
    except OSError:  # its file system has none
        return {}


def set_facts(fd: int, mode: int, modified: int, attributes: Mapping[str, bytes]) -> None:
    """Give an open file or directory its attributes, permissions, and time of the last change."""
    now = attributes_of(fd)
    for name in now.keys() - attributes.keys():
        os.removexattr(fd, name)
    missing = {name: value for name, value in attributes.items() if now.get(name) != value}
    # A list of users who may use a file has its permissions in it, so that it comes after these.
    # Other attributes need the permission to write.
    lists = {name for name in missing if not name.startswith("user.")}
    for name in missing.keys() - lists:
        os.setxattr(fd, name, missing[name])
    status = os.fstat(fd)
    if stat.S_IMODE(status.st_mode) != stat.S_IMODE(mode):
        os.fchmod(fd, stat.S_IMODE(mode))
    for name in lists:
        os.setxattr(fd, name, missing[name])
    if status.st_mtime_ns != modified:
        os.utime(fd, ns=(modified, modified))


def check_socket(inode: int, mode: int, status: os.stat_result | None) -> None:
    """Check that a socket is still there: no undo can bring one back.

    Args:
        inode, mode: of the socket.
        status: of what has its name now; None if nothing has.
    """
    if status is None or (status.st_ino, status.st_mode) != (inode, mode):
        raise OSError(0, "is gone: only its process can make a socket")


@contextlib.contextmanager
def opened_again(directory: int, name: bytes, flags: int, mode: int) -> Generator[int, None, None]:
    """Open for reading a file whose mode may forbid that, and leave its mode as it was.

    Args:
        mode: that it has.
    """
    needed = 0o500 if flags & os.O_DIRECTORY else 0o400
    closed = mode & needed != needed
    if closed:
        os.chmod(name, stat.S_IMODE(mode) | needed, dir_fd=directory)
    try:
        fd = os.open(name, flags, dir_fd=directory)
        try:
            yield fd
        finally:
            os.close(fd)
    finally:
        if closed:
            os.chmod(name, stat.S_IMODE(mode), dir_fd=directory)


@contextlib.contextmanager
def opened_to_change(
    directory: int, name: bytes, flags: int, mode: int
) -> Generator[int, None, None]:
    """Open a file whose mode may forbid to change it. The caller sets the mode within the block.

    Args:
        mode: that it has.
    """
    if mode & stat.S_IRWXU != stat.S_IRWXU and not flags & os.O_CREAT:
        os.chmod(name, stat.S_IMODE(mode) | stat.S_IRWXU, dir_fd=directory)
    fd = os.open(name, flags, 0o600, dir_fd=directory)
    try:
        yield fd
    finally:
        os.close(fd)


def is_whiteout(status: os.stat_result) -> bool:
    """Return whether a file is an overlay's mark for a removed one."""
    return stat.S_ISCHR(status.st_mode) and not status.st_rdev


def is_opaque(directory: int) -> bool:
    """Return whether an overlay's directory hides the one below it."""
    try:
        return os.getxattr(directory, "user.overlay.opaque") == b"y"
    except OSError:
        return False


def remove(directory: int, name: bytes, depth: int = 0) -> None:
    """Remove a file, or a directory and all below it."""
    status = os.stat(name, dir_fd=directory, follow_symlinks=False)
    if not stat.S_ISDIR(status.st_mode):
        os.unlink(name, dir_fd=directory)
        return
    if depth > DEEPEST_REMOVED:
        raise OSError(errno.ELOOP, os.strerror(errno.ELOOP))
    with opened_to_change(directory, name, OPEN_DIRECTORY, status.st_mode) as fd:
        for below in os.listdir(fd):
            remove(fd, os.fsencode(below), depth + 1)
    os.rmdir(name, dir_fd=directory)


def transfer(source: int, start: int, sink: int, place: int, length: int) -> None:
    """Copy a part of a file into another one."""
    os.lseek(sink, place, os.SEEK_SET)
    end = start + length
    while start < end:
        copied = os.sendfile(sink, source, start, end - start)
        if not copied:
            return  # it was made shorter meanwhile
        start += copied
