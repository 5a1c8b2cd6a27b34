"""A project in a jail: its directory, exactly the one that was checked, and a session's changes in
an overlay.

A fork makes its overlay itself. In a jail of its own bwrap mounts it, but its upper layer must be
somewhere on the host, and could grow to all free space there. So a program runs before bwrap
(`OverlaySpace`). In a mount namespace that nobody else is in, it makes a file system in memory of
bounded size and hands us a descriptor of the layer. Then it becomes bwrap. The layer has a path
only in that namespace, and bwrap leaves it.
"""

from __future__ import annotations

import json
import os
import socket
import sys
from collections.abc import Sequence

from nsm.wire.errors import BadProjectError, StartFailedError
from nsmd.fdstore.holder import receive
from nsmd.jail.user import JailUser, OtherGroupError
from nsmd.model.policy import INODES_PER_MB
from nsmd.model.values import CheckedDirectory


class NoCopyError(BadProjectError):
    """A jail cannot have an overlay of the project; `why` is a sentence without its final dot."""

    def __init__(self, path: str, why: str, hint: str | None = None) -> None:
        self._path = path
        self.why = why
        super().__init__(
            f"The project {path} cannot be shown copy-on-write (mode overlay) here: {why}.",
            hint=hint or "Use the mode readonly; `nsm doctor` says what overlay needs.",
        )

    def in_place_of_a_fork(self, reason: str) -> NoCopyError:
        """Add that the session should have been a fork, which could have an overlay."""
        why = f"no session can be forked ({reason}), and in a jail of its own {self.why}"
        return NoCopyError(self._path, why, self.hint)


class NoWritableRootError(StartFailedError):
    """A jail cannot have an overlay of an image's files as its root directory."""

    def __init__(
        self, environment: str, why: str = "only forks of a template can have one"
    ) -> None:
        self._environment = environment
        super().__init__(
            f"Sessions of {environment!r} cannot have a writable root directory here: {why}.",
            hint='Without `root = "overlay"`, its files are read-only; `nsm doctor` says what '
            "forks and overlays need.",
        )

    def in_place_of_a_fork(self, reason: str) -> NoWritableRootError:
        """Replace the reason by why the session is no fork."""
        return NoWritableRootError(self._environment, reason.removesuffix("."))


class ProjectCopy:
    """Descriptors of one session's overlay, owned from now on; they keep its content when the jail
    is gone: the directory of the changes (overlayfs's upper layer), and the project as code sees
    it, unless only the jail has that. `applied` has the changes that were applied to the host, by
    path, with `st_ctime_ns` there.

    Code has made all of the content, and may change it at any time: names, links, modes. Do not
    trust, follow or execute anything in it.
    """

    __slots__ = ("applied", "changed", "shown")

    def __init__(self, changed: int, shown: int | None) -> None:
        self.changed = changed
        self.shown = shown
        self.applied: dict[str, int] = {}

    def __repr__(self) -> str:
        return f"<ProjectCopy {self.changed}>"

    def duplicate(self) -> ProjectCopy:
        """Duplicate the descriptors, for a task that may outlive the jail."""
        changed = os.dup(self.changed)
        try:
            return ProjectCopy(changed, None if self.shown is None else os.dup(self.shown))
        except OSError:
            os.close(changed)
            raise

    def close(self) -> None:
        """Close the descriptors; call once."""
        os.close(self.changed)
        if self.shown is not None:
            os.close(self.shown)


def open_project(user: JailUser, project: CheckedDirectory) -> tuple[str, int]:
    """Return a project's path for the jails' user, and a descriptor of it. A `BadProjectError` says
    that it is not the directory that was checked, that this user cannot go there, or could not
    change it in an overlay.
    """
    try:
        path = _way_to_own(user, project.path) if project.copied else user.way_to(project.path)
        fd = os.open(path, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except PermissionError as error:
        raise BadProjectError(
            f"The project directory {project.path} cannot be shown: {error}.",
            hint="Open it to that user (chmod o+rx), start nsm as the project's owner, or set "
            "[defaults] jail_uid in config.toml.",
        ) from error
    except OSError as error:
        raise BadProjectError(
            f"The project directory {project.path} cannot be opened: {error.strerror}.",
            hint="Name another directory, or put it back.",
        ) from error
    found = os.fstat(fd)
    if (found.st_dev, found.st_ino) != (project.device, project.inode):
        os.close(fd)
        raise BadProjectError(
            f"The project directory {project.path} was replaced by another one.",
            hint="Start a new session.",
        )
    return path, fd


def _way_to_own(user: JailUser, path: str) -> str:
    """Return a path by which the files belong to that user."""
    try:
        return user.way_to_own(path)
    except OSError as error:
        if not os.path.isdir(path):
            raise  # this has another message
        hint = error.hint if isinstance(error, OtherGroupError) else None
        raise NoCopyError(path, error.strerror or str(error), hint) from error


PLACE = "/sys"
"""A directory that every host has, without projects or interpreters in it."""

PROJECT, CHANGED, WORK = f"{PLACE}/project", f"{PLACE}/changed", f"{PLACE}/work"

_PROGRAM = """
import ctypes, json, os, socket, sys
libc = ctypes.CDLL(None, use_errno=True)
given = json.loads(sys.argv[1])
uid, gid = os.getuid(), os.getgid()
place = given["place"]

def call(what, result):
    if result:
        sys.exit(f"no room for a copy of the project: {what}: {os.strerror(ctypes.get_errno())}")

def mount(source, target, kind, flags, options=""):
    encoded = [text.encode() for text in (source, target, kind)]
    result = libc.mount(*encoded, ctypes.c_ulong(flags), options.encode())
    call(f"mount {kind or source} on {target}", result)

NOSUID, NODEV, BIND, REC, PRIVATE = 2, 4, 4096, 1 << 14, 1 << 18
NEWNS, NEWUSER = 0x20000, 0x10000000
# The directory that was checked: a working directory goes along into a new namespace.
os.fchdir(given["project"])
mode = os.stat(".").st_mode & 0o777
call("unshare", libc.unshare(NEWNS if uid == 0 else NEWNS | NEWUSER))
if uid:
    maps = {"setgroups": "deny", "uid_map": f"{uid} {uid} 1", "gid_map": f"{gid} {gid} 1"}
    for name, text in maps.items():
        with open(f"/proc/self/{name}", "w") as file:
            file.write(text)
mount("none", "/", "", REC | PRIVATE)
size, inodes = given["size_mb"], given["inodes"]
mount("tmpfs", place, "tmpfs", NOSUID | NODEV, f"size={size}m,nr_inodes={inodes},mode=0711")
for name in ("project", "changed", "work"):
    os.mkdir(f"{place}/{name}", 0o700)
    os.chown(f"{place}/{name}", given["uid"], given["gid"])
os.chmod(f"{place}/changed", mode)
try:
    os.setxattr(f"{place}/changed", "user.overlay.tried", b"")
    os.removexattr(f"{place}/changed", "user.overlay.tried")
except OSError as error:
    sys.exit(f"no room for a copy of the project: attributes in memory take Linux 6.6: {error}")
mount(".", f"{place}/project", "", BIND)
fd = os.open(f"{place}/changed", os.O_RDONLY | os.O_DIRECTORY)
with socket.socket(fileno=given["channel"]) as channel:
    socket.send_fds(channel, [b"+"], [fd])
os.close(fd)
os.close(given["project"])
os.chdir("/")
if uid == 0:
    os.setgroups([])
    os.setresgid(given["gid"], given["gid"], given["gid"])
    os.setresuid(given["uid"], given["uid"], given["uid"])
os.execv(sys.argv[2], sys.argv[2:])
"""


class OverlaySpace:
    """Room of one jail, made before the jail. Close it after the start, successful or not."""

    def __init__(self, size_mb: int) -> None:
        self._size_mb = size_mb
        self._ours, self._theirs = socket.socketpair()
        self._ours.setblocking(False)

    @property
    def inherited(self) -> Sequence[int]:
        """Descriptors that the command needs."""
        return [self._theirs.fileno()]

    def command(self, project: int, user: JailUser) -> list[str]:
        """Return the words before bwrap's path and arguments; start them as our own user."""
        given = {
            "place": PLACE,
            "project": project,
            "channel": self._theirs.fileno(),
            "size_mb": self._size_mb,
            "inodes": self._size_mb * INODES_PER_MB,
            "uid": user.uid,
            "gid": user.gid,
        }
        return [sys.executable, "-I", "-S", "-c", _PROGRAM, json.dumps(given)]

    def receive_layer(self) -> ProjectCopy:
        """Return the layer of a jail that has started."""
        _, fds, _ = receive(self._ours, size=1)
        if len(fds) != 1:
            raise OSError("the room for an overlay of the project was not handed over")
        return ProjectCopy(fds[0], None)

    def close(self) -> None:
        """Close what is no longer needed; may be repeated."""
        self._ours.close()
        self._theirs.close()
