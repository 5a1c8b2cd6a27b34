"""Host user that jails run as, and paths to directories that are closed to that user.

Under a supervisor of root, jails run as an ordinary user, who may not pass through /root to a
project or an interpreter there. The supervisor can: in a mount namespace of its own it binds them
below a directory that everyone may pass through, and bwrap finds them there. Nobody outside that
namespace sees it.
"""

from __future__ import annotations

import ctypes
import grp
import logging
import os
import secrets
import stat
import struct
import subprocess
import sys
from collections.abc import Generator
from contextlib import contextmanager, suppress

from nsm.wire.tuples import NamedTuple
from nsmd.host.paths import why_unreachable, why_unreadable

log = logging.getLogger(__name__)

BASE = "/run/nsm-mounts"
"""Empty directory on the host; a small file system in the supervisor's namespace."""

# From sched.h and sys/mount.h. `os.unshare` is new in Python 3.12, and there is no mount(2).
_CLONE_NEWNS = 0x0002_0000
_MS_NOSUID, _MS_NODEV, _MS_NOEXEC = 2, 4, 8
_MS_BIND, _MS_REC, _MS_SLAVE = 4096, 16384, 1 << 19
_MNT_DETACH = 2

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
        """Make a path to a directory that every user may pass through; its mode and content stay
        unchanged. With an owner, the files of its owner and group belong to that user and group
        under that path, and files of all others to nobody.
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

    @contextmanager
    def inner(self) -> Generator[PrivateMounts]:
        """Give binds that go with the block."""
        inner = PrivateMounts(os.path.join(self._base, f"inner-{secrets.token_hex(8)}"))
        _make_base(inner._base)
        try:
            yield inner
        finally:
            with suppress(OSError):  # one that was left there goes with the supervisor
                for target in inner._exposed.values():
                    _call("umount2", target.encode(), _MNT_DETACH)
                    os.rmdir(target)
                os.rmdir(inner._base)


def enter_private_mounts(base: str = BASE) -> PrivateMounts | None:
    """Move this process into a mount namespace of its own; None if the kernel refuses, as in most
    containers, which is logged.

    Call it in the main thread, before others exist: they would stay outside. Later mounts on the
    host appear inside; the reverse does not happen.
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
    """Bind a directory, without mounts below it, so that files have another owner than on disk:
    `shown` is user and group in the mount, where files of all others belong to nobody.

    The jails' user could not change root's files in a project, not even in an overlay. The kernel
    translates owners for one mount alone (mount_setattr(2), MOUNT_ATTR_IDMAP; Linux 5.12, and 5.19
    below an overlay). Blocks for some 30 ms.
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


class Credentials(NamedTuple):
    """Arguments of `subprocess.Popen`; None for no change."""

    user: int | None
    group: int | None
    extra_groups: list[int] | None


class OtherGroupError(PermissionError):
    """A directory of this user belongs to a group that is not the supervisor's first one.

    Files of such a group can be read and written, and not copied within an overlay: an ordinary
    user's namespace has the number of one group, that of its process (user_namespaces(7)).
    """

    def __init__(self, group: int, own: int) -> None:
        name, ours = _group_name(group), _group_name(own)
        self.hint = (
            f"Start the supervisor in the project's group (`nsm shutdown`, then "
            f"`sg {name} -c 'nsm env'`), or give the project to {ours} (`chgrp -R {ours}`)."
        )
        super().__init__(
            f"its group is {name}, and an overlay can only copy files of the supervisor's group, "
            f"{ours}"
        )


def _group_name(number: int) -> str:
    try:
        return grp.getgrgid(number).gr_name
    except KeyError:
        return str(number)


class JailUser:
    """The host user that jails run as: an ordinary one if the supervisor runs as root, else its
    own.

    Even inside a user namespace, host uid 0 owns what the kernel protects by owner, such as
    /proc/sys, so a jail cannot hold it.

    Raises:
        ValueError: jails would run as root.
    """

    def __init__(self, uid: int | None, mounts: PrivateMounts | None = None) -> None:
        self._changes = os.geteuid() == 0
        if self._changes and not uid:
            raise ValueError(
                "a supervisor that runs as root needs the id of an ordinary user to run jails as; "
                "set [defaults] jail_uid"
            )
        self.uid = uid if self._changes and uid else os.geteuid()
        self.gid = self.uid if self._changes else os.getegid()
        self._mounts = mounts

    def __repr__(self) -> str:
        return f"<JailUser {self.uid}>"

    @property
    def has_mounts(self) -> bool:
        """True if there can be paths to directories that this user cannot reach."""
        return self._mounts is not None

    @contextmanager
    def with_temporary_binds(self) -> Generator[JailUser]:
        """Yield the same user; what its `way_to` makes is removed at the end of the block."""
        if self._mounts is None:
            yield self
            return
        with self._mounts.inner() as mounts:
            yield JailUser(self.uid, mounts)

    def credentials(self) -> Credentials:
        """Return the arguments with which `subprocess.Popen` starts a program as this user."""
        if not self._changes:
            return Credentials(user=None, group=None, extra_groups=None)
        return Credentials(user=self.uid, group=self.uid, extra_groups=[])

    def why_impossible(self, proc: str = "/proc") -> str | None:
        """Return why root cannot become this user here; None if it probably can."""
        if not self._changes:
            return None
        try:
            with open(f"{proc}/self/uid_map", encoding="ascii") as file:
                ranges = [[int(field) for field in line.split()] for line in file]
            with open(f"{proc}/self/setgroups", encoding="ascii") as file:
                groups_denied = file.read().strip() == "deny"
        except (OSError, ValueError):
            return None
        if not any(first <= self.uid < first + count for first, _, count in ranges):
            return f"this user namespace has no user {self.uid}"
        return "this user namespace denies setgroups" if groups_denied else None

    def why_unreadable(self, path: str) -> str | None:
        """Return why this user cannot read a directory or file; None if it can."""
        try:
            if not self._changes:
                readable = os.access(path, os.R_OK)
                return None if readable else f"{path} is not readable"
            if self._mounts is not None:
                return why_unreadable(path, self.uid, self.uid)
            return why_unreachable(path, self.uid, self.uid)
        except OSError as error:
            return f"{path}: {error.strerror}"

    def can_use(self, device: str) -> bool:
        """Return whether this user can read and write a device.

        Access lists count for an ordinary user only: root would have to open the device to know.
        """
        if not self._changes:
            return os.access(device, os.R_OK | os.W_OK)
        found = os.stat(device)
        shift = 6 if found.st_uid == self.uid else 3 if found.st_gid == self.gid else 0
        return found.st_mode >> shift & 0o6 == 0o6

    def why_no_way(self, path: str) -> str | None:
        """Return why this user cannot reach a file by its own path; None if it can, or if there is
        no file.
        """
        if not self._changes:
            return None  # the attempt will show
        try:
            return why_unreachable(path, self.uid, self.uid)
        except OSError:
            return None

    def give(self, path: str) -> None:
        """Make this user the owner of a directory."""
        if self._changes:
            os.chown(path, self.uid, self.uid)

    def way_to_own(self, directory: str) -> str:
        """Return a path by which the files of a directory's owner belong to this user. A
        `PermissionError` names the owner if there is none; another `OSError` says that it is not
        there, or that its file system does not translate owners.

        In a user namespace no other user's files can be changed in an overlay: their owners have no
        number there.
        """
        found = os.stat(directory)
        if (found.st_uid, found.st_gid) == (self.uid, self.gid):
            return self.way_to(directory)
        whose = f"it belongs to user {found.st_uid}, group {found.st_gid}"
        if not self._changes:
            if found.st_uid == self.uid and found.st_gid in os.getgroups():
                raise OtherGroupError(found.st_gid, self.gid)
            raise PermissionError(f"{whose}, and you are user {self.uid}, group {self.gid}")
        if self._mounts is None:
            raise PermissionError(
                f"{whose}, jails run as user {self.uid}, and the kernel lets this supervisor mount "
                "nothing that would translate the one to the other"
            )
        if reason := why_unreadable(directory, self.uid, self.uid):
            raise PermissionError(f"{reason}, the user that jails run as")
        return self._mounts.expose(directory, self.uid)

    def way_to(self, directory: str) -> str:
        """Return a path by which this user reaches a directory; the path itself if the user can use
        it.
        """
        if not self._changes:
            return directory
        reason = why_unreachable(directory, self.uid, self.uid)
        if reason is None:
            return directory
        if self._mounts is None or why_unreadable(directory, self.uid, self.uid):
            raise PermissionError(f"{reason}, the user that jails run as")
        return self._mounts.expose(directory)
