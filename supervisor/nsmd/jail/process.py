"""A jail that bwrap started: its two processes, watched through descriptors."""

from __future__ import annotations

import fcntl
import os
import socket
import subprocess
from collections.abc import Callable
from contextlib import suppress

import trio

from nsmd.jail.handle import JailHandle
from nsmd.jail.process_tree import kill_group, kill_tree

STDERR_LIMIT_BYTES = 64 * 1024
"""Enough for a line of bwrap or an agent's traceback."""

STARTER_GRACE_S = 1.0
"""Time before the starter is killed. bwrap's outer process ends by itself within a millisecond of
the jail, and a wrapper around it when it has cleaned up. Waiting lets it collect the jail's exit
status, so that no zombie goes to the host's init.
"""


class BwrapJail(JailHandle):
    """Jail that bwrap started.

    There are two processes on the host: bwrap's outer one, our child, and the jail's PID 1, its
    child; with an artifact's wrapper between us and bwrap, three. Killing an outer one leaves the
    jail running, so everything here acts on PID 1.

    Args:
        starter: our child.
        pid, pidfd: process id and pidfd of the jail's PID 1; the pidfd is owned from now on.
        channel: the supervisor's end of the agent's socket; owned from now on.
        stderr_fd: from `make_stderr`; owned from now on, and closed once the jail is ready.

    Attributes:
        policy: as in `Jail`; None for a template's jail.
        project_copy: as in `Jail`; owned once it is set.
    """

    def __init__(
        self,
        *,
        starter: subprocess.Popen[bytes],
        pid: int,
        pidfd: int,
        channel: socket.socket,
        stderr_fd: int,
    ) -> None:
        super().__init__(channel, pidfd, pid)
        self._starter = starter
        self._stderr_fd = stderr_fd
        self._stderr_text: str | None = None  # once that is closed
        self._ended = False
        self._waiting = trio.Lock()

    def __repr__(self) -> str:
        state = "released" if self._released else "ended" if self._ended else "running"
        return f"<BwrapJail pid={self.pid} starter={self._starter.pid} {state}>"

    @property
    def starter_pid(self) -> int:
        return self._starter.pid

    async def wait(self) -> None:
        async with self._waiting:
            if self._ended:
                return
            # PID 1 of a PID namespace becomes waitable after all others in it are gone
            # (pid_namespaces(7)).
            await trio.lowlevel.wait_readable(self.pidfd)
            self._reap_adopted()
            await wait_for_starter(self._starter)
            self._ended = True

    async def reap_starter(self) -> None:
        """Reap bwrap's outer process if it ends before the jail, as a template's does."""
        await wait_for_starter(self._starter, kill_group)

    def _reap_adopted(self) -> None:
        """Reap PID 1 if it became our child: its parent was killed, and we are a subreaper."""
        with suppress(ChildProcessError):
            os.waitid(os.P_PIDFD, self.pidfd, os.WEXITED | os.WNOHANG)

    def stderr_text(self) -> str:
        if self._stderr_text is None:
            return read_stderr(self._stderr_fd)
        return "" if self._released else self._stderr_text

    def mark_ready(self) -> None:
        if self._stderr_text is None:
            self._stderr_text = read_stderr(self._stderr_fd)
            os.close(self._stderr_fd)

    def release(self) -> None:
        super().release()
        self.mark_ready()


async def wait_for_starter(
    starter: subprocess.Popen[bytes], kill: Callable[[int], None] = kill_tree
) -> None:
    """Reap the starter of a jail that is gone or never existed; kill it if it lingers.

    The rest of its process group is killed, too.

    Args:
        kill: gets its process id; `kill_group` if the jail should live on.

    Cancellation: loses nothing; call it again.
    """
    if starter.returncode is not None:
        return
    try:
        # Nobody else reaps it, so the process id is still its own.
        pidfd = os.pidfd_open(starter.pid)
    except OSError:  # there is no free descriptor for it
        await trio.to_thread.run_sync(_wait_in_thread, starter, kill)
        return
    try:
        with trio.move_on_after(STARTER_GRACE_S) as grace:
            await trio.lowlevel.wait_readable(pidfd)
        if grace.cancelled_caught:
            kill(starter.pid)
            await trio.lowlevel.wait_readable(pidfd)
    finally:
        os.close(pidfd)
    kill_group(starter.pid)
    starter.wait()


async def end_starter(starter: subprocess.Popen[bytes]) -> None:
    """Kill the starter of a jail, and all that it has started so far.

    Cancellation: shielded; 1 ms.
    """
    if starter.returncode is None:
        kill_tree(starter.pid)
        with trio.CancelScope(shield=True):
            await wait_for_starter(starter)


def _wait_in_thread(starter: subprocess.Popen[bytes], kill: Callable[[int], None]) -> None:
    try:
        starter.wait(STARTER_GRACE_S)
    except subprocess.TimeoutExpired:
        kill(starter.pid)
        starter.wait()


def make_stderr() -> int:
    """Make a descriptor that takes `STDERR_LIMIT_BYTES` and refuses the rest.

    The jail holds it too, so the bound must be the kernel's: a sealed memory file cannot grow
    (memfd_create(2), F_SEAL_GROW).
    """
    fd = os.memfd_create("nsm-stderr", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        os.ftruncate(fd, STDERR_LIMIT_BYTES)
        seals = fcntl.F_SEAL_GROW | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_SEAL
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, seals)
    except BaseException:
        os.close(fd)
        raise
    return fd


def read_stderr(fd: int) -> str:
    """The text in a descriptor of `make_stderr`, without control characters."""
    text = os.pread(fd, STDERR_LIMIT_BYTES, 0).rstrip(b"\0").decode(errors="replace")
    return "".join(c for c in text if c in "\n\t" or c.isprintable()).strip()
