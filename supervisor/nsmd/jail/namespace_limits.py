"""Limits of inotify and of inodes in jails that bwrap makes: it has no option for them.

The kernel counts instances and watches of inotify for each user, on the host and in jails together.
A process sets the limits of the jail's user namespace by entering it, which only a process of one
thread can. In the jail's mounts, it sets those of the file systems in memory.
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Mapping

import trio

log = logging.getLogger(__name__)

INSTANCES, WATCHES = 16, 16384
"""The same as in forks (`sandbox.template.session.COUNTED`)."""

TIMEOUT_S = 5.0
"""Time for the process, which takes some 20 ms."""

_PROGRAM = f"""
import ctypes, fcntl, os, sys
libc = ctypes.CDLL(None, use_errno=True)
def check(result, what):
    if result < 0:
        sys.exit(what + ": " + os.strerror(ctypes.get_errno()))
mounts = int(sys.argv[1])
owner = fcntl.ioctl(mounts, 0xb701)  # NS_GET_USERNS
check(libc.setns(owner, 0x10000000), "its user namespace")
for name, most in (("instances", {INSTANCES}), ("watches", {WATCHES})):
    with open("/proc/sys/user/max_inotify_" + name, "w") as file:
        file.write(str(most))
check(libc.setns(mounts, 0x20000), "its mounts")
flags = ctypes.c_ulong(32 | 2 | 4)  # MS_REMOUNT | MS_NOSUID | MS_NODEV
for path, most in zip(sys.argv[2::2], sys.argv[3::2]):
    options = b"nr_inodes=" + most.encode()
    check(libc.mount(b"tmpfs", path.encode(), b"tmpfs", flags, options), path)
"""


async def limit_namespaces(pid: int, inodes: Mapping[str, int]) -> None:
    """Set the limits of a jail before code runs in it.

    What fails is logged: without the limits a session works, and may take what others need.

    Args:
        pid: its PID 1, which has all of its mounts; the caller keeps it from being another
            process's.
        inodes: largest number of files and directories of file systems in memory, by path.

    Cancellation: waits for the end of the process.
    """
    try:
        mounts = os.open(f"/proc/{pid}/ns/mnt", os.O_RDONLY | os.O_CLOEXEC)
    except OSError as error:
        log.warning("a jail has no limits of inotify and inodes: %s", error.strerror)
        return
    words = [word for path, most in inodes.items() for word in (path, str(most))]
    try:
        with trio.CancelScope(shield=True), trio.move_on_after(TIMEOUT_S):
            done = await trio.run_process(
                [sys.executable, "-I", "-S", "-c", _PROGRAM, str(mounts), *words],
                pass_fds=[mounts],
                cwd="/",
                env={},
                capture_stderr=True,
                check=False,
            )
            if done.returncode != 0:
                said = done.stderr.decode(errors="replace").strip()
                log.warning("a jail lacks limits of inotify or inodes: %s", said[-200:])
    except OSError as error:
        log.warning("a jail has no limits of inotify and inodes: %s", error.strerror)
    finally:
        os.close(mounts)
