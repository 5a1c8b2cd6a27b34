"""Paths to closed directories for the jails of a supervisor that runs as root.

Such jails run as an ordinary user, who may not pass through /root to a project or an interpreter
there. The supervisor can: in a mount namespace of its own it binds them below a directory that
everyone may pass through, and bwrap finds them there. Nobody outside that namespace sees it.
"""

from __future__ import annotations

import ctypes
import logging
import os
import stat
import struct
import subprocess
import sys
from collections.abc import Generator
from contextlib import contextmanager

log = logging.getLogger(__name__)

BASE = "/run/nsm-mounts"
"""Empty directory on the host; a small file system in the supervisor's namespace."""

# From sched.h and sys/mount.h. `os.unshare` is new in Python 3.12, and there is no mount(2).
_CLONE_NEWNS = 0x0002_0000
_MS_NOSUID, _MS_NODEV, _MS_NOEXEC = 2, 4, 8
_MS_BIND, _MS_REC, _MS_SLAVE = 4096, 16384, 1 << 19

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


class PrivateMounts:
    """Binds of closed directories; made by `enter_private_mounts`.

    Each stays until the supervisor ends: there are as many as projects and interpreters.
    """

    def __init__(self, base: str) -> None:
        self._base = base
        self._exposed: dict[tuple[int, int, int | None], str] = {}

    def __repr__(self) -> str:
        return f"<PrivateMounts {self._base} {len(self._exposed)}>"

    def expose(self, directory: str, owner: int | None = None) -> str:
        """Make a path to a directory that every user may pass through.

        The mode and the content of the directory stay unchanged.

        Args:
            owner: user and group that the files of its owner and group belong to under that path;
                files of all others belong to nobody then.

        Raises:
            OSError: it is not there, or cannot be bound.
        """
        # The same directory has the same identity; one that was replaced gets a bind of its own.
        found = os.stat(directory)
        key = found.st_dev, found.st_ino, owner
        if key not in self._exposed:
            target = os.path.join(self._base, str(len(self._exposed)))
            os.makedirs(target, exist_ok=True)
            if owner is None:
                _mount(directory, target, "", _MS_BIND | _MS_REC, "")
            else:
                mount_as(directory, target, (found.st_uid, found.st_gid), owner)
            bound = os.stat(target)
            if (bound.st_dev, bound.st_ino) != key[:2]:
                raise OSError(f"{directory} was replaced while it was bound")
            self._exposed[key] = target
        return self._exposed[key]


def enter_private_mounts(base: str = BASE) -> PrivateMounts | None:
    """Move this process into a mount namespace of its own.

    Call it in the main thread, before others exist: they would stay outside. Later mounts on the
    host appear inside; the reverse does not happen.

    Args:
        base: directory for the binds; its parent must be open to all users and writable by root
            only.

    Returns:
        None if the kernel refuses, as in most containers; that is logged.
    """
    try:
        _make_base(base)
        _call("unshare", _CLONE_NEWNS)
        _mount("none", "/", "", _MS_REC | _MS_SLAVE, "")
        _mount("nsm", base, "tmpfs", _MS_NOSUID | _MS_NODEV | _MS_NOEXEC, "size=1m,mode=0755")
    except OSError as error:
        log.warning(
            "no mount namespace for the supervisor (%s): jails see only what their user can reach",
            error,
        )
        return None
    return PrivateMounts(base)


def _make_base(base: str) -> None:
    os.makedirs(base, exist_ok=True)
    found = os.lstat(base)
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid():
        raise OSError(f"{base} is not a directory of ours")
    os.chmod(base, 0o755)  # whatever the umask


def _mount(source: str, target: str, kind: str, flags: int, data: str) -> None:
    encoded = [os.fsencode(text) for text in (source, target, kind)]
    _call("mount", *encoded, ctypes.c_ulong(flags), data.encode())


def _call(function: str, *arguments: object, name: str = "") -> int:
    libc = ctypes.CDLL(None, use_errno=True)
    result: int = libc[function](*arguments)
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{name or function}: {os.strerror(number)}")
    return result


def mount_as(directory: str, target: str, owner: tuple[int, int], shown: int) -> None:
    """Bind a directory, without mounts below it, so that files have another owner than on disk.

    The jails' user could not change root's files in a project, not even in an overlay. The kernel
    translates owners for one mount alone (mount_setattr(2), MOUNT_ATTR_IDMAP; Linux 5.12, and 5.19
    below an overlay). Blocks for some 30 ms.

    Args:
        target: an existing directory.
        owner: user and group on the disk.
        shown: user and group in the mount; files of all others belong to nobody there.

    Raises:
        OSError: the kernel or the file system refuses.
    """
    with _user_namespace(owner, shown) as namespace:
        flags = _OPEN_TREE_CLONE | _OPEN_TREE_CLOEXEC
        tree = _call(
            "syscall", _OPEN_TREE, _AT_FDCWD, os.fsencode(directory), flags, name="open_tree"
        )
        try:
            # struct mount_attr: to set, to clear, propagation, namespace
            wanted = _MOUNT_ATTR_IDMAP | _MOUNT_ATTR_NOSUID | _MOUNT_ATTR_NODEV
            attributes = struct.pack("QQQQ", wanted, 0, 0, namespace)
            to, size = os.fsencode(target), ctypes.c_size_t(len(attributes))
            given = tree, b"", _AT_EMPTY_PATH, attributes, size
            _call("syscall", _MOUNT_SETATTR, *given, name="mount_setattr")
            moved = tree, b"", _AT_FDCWD, to, _MOVE_MOUNT_F_EMPTY_PATH
            _call("syscall", _MOVE_MOUNT, *moved, name="move_mount")
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
        cwd="/",
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
