"""Mounts of directories that show files with another owner than on disk.

They are for a supervisor that runs as root: its jails run as an ordinary user, who could not change
root's files in a project, not even in an overlay. The kernel translates owners for one mount alone
(mount_setattr(2), MOUNT_ATTR_IDMAP; Linux 5.12, and 5.19 below an overlay).
"""

from __future__ import annotations

import ctypes
import os
import struct
import subprocess
import sys
from collections.abc import Generator
from contextlib import contextmanager

# Numbers on every architecture (asm-generic/unistd.h), and flags of fcntl.h and linux/mount.h.
_OPEN_TREE, _MOVE_MOUNT, _MOUNT_SETATTR = 428, 429, 442
_AT_FDCWD = -100
_AT_EMPTY_PATH = 0x1000
_OPEN_TREE_CLONE, _OPEN_TREE_CLOEXEC = 1, os.O_CLOEXEC
_MOVE_MOUNT_F_EMPTY_PATH = 4
_MOUNT_ATTR_NOSUID, _MOUNT_ATTR_NODEV, _MOUNT_ATTR_IDMAP = 0x2, 0x4, 0x0010_0000

_HOLD = """
import ctypes, os, sys
CLONE_NEWUSER = 0x10000000
if ctypes.CDLL(None, use_errno=True).unshare(CLONE_NEWUSER):
    sys.exit(os.strerror(ctypes.get_errno()))
os.write(1, b"+")
os.read(0, 1)
"""
"""Program that keeps a user namespace while its standard input is open."""


def mount_as(directory: str, target: str, owner: tuple[int, int], shown: int) -> None:
    """Bind a directory, without mounts below it; blocks for some 30 ms.

    Args:
        target: an existing directory.
        owner: user and group on the disk.
        shown: user and group in the mount; files of all others belong to nobody there.

    Raises:
        OSError: the kernel or the file system refuses.
    """
    with _user_namespace(owner, shown) as namespace:
        flags = _OPEN_TREE_CLONE | _OPEN_TREE_CLOEXEC
        tree = _call("open_tree", _OPEN_TREE, _AT_FDCWD, os.fsencode(directory), flags)
        try:
            # struct mount_attr: to set, to clear, propagation, namespace
            wanted = _MOUNT_ATTR_IDMAP | _MOUNT_ATTR_NOSUID | _MOUNT_ATTR_NODEV
            attributes = struct.pack("QQQQ", wanted, 0, 0, namespace)
            size = ctypes.c_size_t(len(attributes))
            _call("mount_setattr", _MOUNT_SETATTR, tree, b"", _AT_EMPTY_PATH, attributes, size)
            path = os.fsencode(target)
            _call("move_mount", _MOVE_MOUNT, tree, b"", _AT_FDCWD, path, _MOVE_MOUNT_F_EMPTY_PATH)
        finally:
            os.close(tree)


@contextmanager
def _user_namespace(owner: tuple[int, int], shown: int) -> Generator[int]:
    """Make a user namespace that maps the owner to the shown user. Gives its descriptor."""
    holder = subprocess.Popen(
        [sys.executable, "-I", "-S", "-c", _HOLD],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={},
    )
    with holder:  # it ends with its standard input
        assert holder.stdout is not None
        assert holder.stderr is not None
        if holder.stdout.read(1) != b"+":
            why = holder.stderr.read().decode(errors="replace").strip()
            raise OSError(f"no user namespace for a mount: {why}")
        for kind, there in zip(("uid", "gid"), owner, strict=True):
            with open(f"/proc/{holder.pid}/{kind}_map", "w", encoding="ascii") as file:
                file.write(f"{there} {shown} 1")
        namespace = os.open(f"/proc/{holder.pid}/ns/user", os.O_RDONLY | os.O_CLOEXEC)
        try:
            yield namespace
        finally:
            os.close(namespace)


def _call(name: str, number: int, *arguments: object) -> int:
    libc = ctypes.CDLL(None, use_errno=True)
    result: int = libc.syscall(number, *arguments)
    if result < 0:
        error = ctypes.get_errno()
        raise OSError(error, f"{name}: {os.strerror(error)}")
    return result
