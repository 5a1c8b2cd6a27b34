"""Limits of inotify in jails that bwrap makes: it has no option for them.

The kernel counts instances and watches for each user, on the host and in jails together. A process
sets the limits of the jail's user namespace by entering it, which only a process of one thread can.
"""

from __future__ import annotations

import logging
import os
import sys

import trio

log = logging.getLogger(__name__)

INSTANCES, WATCHES = 16, 16384
"""The same as in forks (`sandbox.template.session.COUNTED`)."""

TIMEOUT_S = 5.0
"""Time for the process, which takes some 20 ms."""

_PROGRAM = f"""
import ctypes, os, sys
libc = ctypes.CDLL(None, use_errno=True)
if libc.setns(int(sys.argv[1]), 0x10000000) < 0:
    sys.exit(os.strerror(ctypes.get_errno()))
for name, most in (("instances", {INSTANCES}), ("watches", {WATCHES})):
    with open("/proc/sys/user/max_inotify_" + name, "w") as file:
        file.write(str(most))
"""


async def limit_inotify(pid: int) -> None:
    """Set the limits of a jail before code runs in it.

    What fails is logged: without the limits a session works, and may take what others need.

    Args:
        pid: its PID 1; the caller keeps it from being another process's.

    Cancellation: waits for the end of the process.
    """
    try:
        namespace = os.open(f"/proc/{pid}/ns/user", os.O_RDONLY | os.O_CLOEXEC)
    except OSError as error:
        log.warning("a jail has no limits of inotify: %s", error.strerror)
        return
    try:
        with trio.CancelScope(shield=True), trio.move_on_after(TIMEOUT_S):
            done = await trio.run_process(
                [sys.executable, "-I", "-S", "-c", _PROGRAM, str(namespace)],
                pass_fds=[namespace],
                env={},
                capture_stderr=True,
                check=False,
            )
            if done.returncode != 0:
                said = done.stderr.decode(errors="replace").strip()
                log.warning("a jail has no limits of inotify: %s", said[-200:])
    except OSError as error:
        log.warning("a jail has no limits of inotify: %s", error.strerror)
    finally:
        os.close(namespace)
