"""Room for the changes in an overlay, for a session with a jail of its own.

bwrap mounts an overlay, but its upper layer must be somewhere on the host, and could grow to all
free space there. So a program runs before bwrap. In a mount namespace that nobody else is in, it
makes a file system in memory of bounded size and hands us a descriptor of the layer. Then it
becomes bwrap. The layer has a path only in that namespace, and bwrap leaves it.
"""

from __future__ import annotations

import json
import socket
import sys
from collections.abc import Sequence

from nsmd.fdstore.holder import receive
from nsmd.jail.project_copy import ProjectCopy
from nsmd.jail.user import JailUser
from nsmd.model.policy import INODES_PER_MB

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
    """Room of one jail, made before the jail. Close it after the start, successful or not.

    Args:
        size_mb: largest size of the changes, MiB.
    """

    def __init__(self, size_mb: int) -> None:
        self._size_mb = size_mb
        self._ours, self._theirs = socket.socketpair()
        self._ours.setblocking(False)

    @property
    def inherited(self) -> Sequence[int]:
        """Descriptors that the command needs."""
        return [self._theirs.fileno()]

    def command(self, project: int, user: JailUser) -> list[str]:
        """Return the words before bwrap's path and arguments; start them as our own user.

        Args:
            project: descriptor of the directory, to be inherited, too.
            user: user that bwrap runs as.
        """
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

    def take(self) -> ProjectCopy:
        """Return the layer of a jail that has started.

        Raises:
            OSError: there is no descriptor left for it.
        """
        _, fds, _ = receive(self._ours, size=1)
        if len(fds) != 1:
            raise OSError("the room for an overlay of the project was not handed over")
        return ProjectCopy(fds[0], None)

    def close(self) -> None:
        """Close what is no longer needed; may be repeated."""
        self._ours.close()
        self._theirs.close()
