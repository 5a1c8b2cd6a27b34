"""A running jail: its processes, killed and waited for, and those of the program that makes it.

A process id is used only while no other process can have taken it: that of our own child until we
reap it, any other through a pidfd that was opened before its position in the tree was checked.

No jail has a parent-death signal. Such a signal follows the *thread* that started the program, and
trio's worker threads end after ten idle seconds; sessions must also outlive their supervisor. A
jail ends by end-of-file on the socket of its agent, its PID 1, or by SIGKILL to that process. To
kill the outer bwrap would leave the processes inside running. An agent that is stopped (SIGSTOP)
sees no end-of-file: if the supervisor is killed meanwhile, that jail stays, stopped.
"""

from __future__ import annotations

import fcntl
import os
import signal
import socket
import subprocess
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import Protocol

import trio

from nsmd.host.processes import children_of, inner_pids, read_process, signal_group
from nsmd.jail.project import ProjectCopy
from nsmd.model.policy import Policy
from nsmd.model.values import JailSpec

STDERR_LIMIT_BYTES = 64 * 1024
"""Enough for a line of bwrap or an agent's traceback."""

STARTER_GRACE_S = 1.0
"""Time before the starter is killed. bwrap's outer process ends by itself within a millisecond of
the jail, and a wrapper around it when it has cleaned up. Waiting lets it collect the jail's exit
status, so that no zombie goes to the host's init.
"""

MOST_ROUNDS = 10
"""Rounds of looking for new processes. The first one stops all that could start something. So the
second finds processes that were being started then, and the third nothing.
"""


def open_descendant(pid: int, root: int) -> int | None:
    """Open a pidfd of a process below our child `root`, which has not been reaped; None if it is
    gone, or not below it. OSError means that there is no descriptor left, here and below.
    """
    try:
        pidfd = os.pidfd_open(pid)
    except ProcessLookupError:
        return None
    # The process that has that id and that position now has had it before, or is gone with it.
    if _is_below(pid, root):
        return pidfd
    os.close(pidfd)
    return None


def open_jail_below(root: int) -> tuple[int, int] | None:
    """Find PID 1 of the outermost PID namespace below our child: its process id, and a pidfd. None
    if there is none.
    """
    for pid in _descendants(root):
        if _is_init(pid):
            pidfd = open_descendant(pid, root)
            if pidfd is not None:
                return pid, pidfd
    return None


def kill_tree(root: int) -> None:
    """Kill a child of ours that leads a process group, and all that it has started.

    It must not have been reaped. A process that left both its group and its tree is not found; a
    process in a PID namespace cannot leave.
    """
    signal_group(root, signal.SIGSTOP)
    # All are stopped before any is killed, because children of a dead process cannot be found; and
    # for the same reason children are killed before their parents.
    found: list[int] = []
    # there is no free descriptor to look with: then only its group is killed
    with suppress(OSError):
        for _ in range(MOST_ROUNDS):
            fresh = [pid for pid in _descendants(root) if pid not in found]
            if not fresh:
                break
            for pid in fresh:
                _signal_descendant(pid, root, signal.SIGSTOP)
            found += fresh
        for pid in reversed(found):
            _signal_descendant(pid, root, signal.SIGKILL)
    kill_group(root)


def kill_group(leader: int) -> None:
    """Kill the process group of a child of ours that has not been reaped."""
    signal_group(leader, signal.SIGKILL)


def _signal_descendant(pid: int, root: int, number: int) -> None:
    """Signal a process below our child, unless it is gone."""
    pidfd = open_descendant(pid, root)
    if pidfd is not None:
        try:
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(pidfd, number)
        finally:
            os.close(pidfd)


def _descendants(root: int) -> Iterator[int]:
    """Process ids below a process, parents before children; processes that come and go meanwhile
    may be missed.

    Of a PID namespace only PID 1 is listed: everything in it ends with that process.
    """
    queue = [root]
    for parent in queue:
        for pid in children_of(parent):
            if not _is_init(pid):
                queue.append(pid)
            yield pid


def _is_below(pid: int, root: int) -> bool:
    while pid > 1:
        if (process := read_process(pid)) is None:
            return False
        if (pid := process.parent) == root:
            return True
    return False


def _is_init(pid: int) -> bool:
    """Return whether a process is PID 1 of a namespace below ours."""
    with suppress(FileNotFoundError, ProcessLookupError):
        numbers = inner_pids(pid)
        return len(numbers) > 1 and numbers[-1] == 1
    return False


class Jail:
    """One running jail: with an agent in it, or with a template.

    On the host, a jail of its own has two processes: bwrap's outer one, our child, and the jail's
    PID 1, its child; with an artifact's wrapper between us and bwrap, three. A fork of a template
    has PID 1 alone. Killing an outer one leaves the jail running, so everything here acts on PID 1.

    It owns the descriptors until `release`. The owner calls `kill`, awaits `wait`, and calls
    `release`, in this order.

    Args:
        channel: the supervisor's end of the agent's channel: a stream, non-blocking, close-on-exec.
        pidfd: of the jail's PID 1; readable once nothing of the jail is left.
        pid: process id on the host of the same process.
        starter: the process that made it: our child, or the id of one that may be our child since
            an earlier supervisor was the same process (execve(2)). None or 0 for a fork.
        stderr_fd: from `make_stderr`; closed once the jail is ready.

    Attributes:
        policy: of the session at its start; None for a template's jail.
        project_copy: changes of its session in an overlay of the project; None in other modes.
        remarks: gives notes on how its sessions start, each once.
        template_pid: process id of its template, or of the template that was about to be replaced
            when it started; 0 for none.
        outdated: its files have changed on disk since.
    """

    __slots__ = (
        "_ended",
        "_released",
        "_starter",
        "_stderr_fd",
        "_stderr_text",
        "_waiting",
        "outdated",
        "pid",
        "pidfd",
        "policy",
        "project_copy",
        "remarks",
        "socket",
        "template_pid",
    )

    def __init__(
        self,
        channel: socket.socket,
        pidfd: int,
        pid: int,
        *,
        starter: subprocess.Popen[bytes] | int | None = None,
        stderr_fd: int | None = None,
        policy: Policy | None = None,
        project_copy: ProjectCopy | None = None,
    ) -> None:
        self.socket = channel
        self.pidfd = pidfd
        self.pid = pid
        self.policy = policy
        self.project_copy = project_copy
        self.remarks: Callable[[], Sequence[str]] = tuple
        self.template_pid = 0
        self.outdated = False
        self._starter = starter or None
        self._stderr_fd = stderr_fd
        self._stderr_text = ""  # once that is closed
        self._ended = self._released = False
        self._waiting = trio.Lock() if starter else None

    def __repr__(self) -> str:
        state = "released" if self._released else "ended" if self._ended else "running"
        return f"<Jail pid={self.pid} starter={self.starter_pid} {state}>"

    @property
    def starter_pid(self) -> int:
        """Process id of our child that made it, which is reaped with it; 0 if there is none."""
        starter = self._starter
        return starter.pid if isinstance(starter, subprocess.Popen) else starter or 0

    def mark_ready(self) -> None:
        """Note that the agent is ready, and release what only the start needed. May be repeated."""
        if self._stderr_fd is not None:
            self._stderr_text = read_stderr(self._stderr_fd)
            os.close(self._stderr_fd)
            self._stderr_fd = None

    def kill(self) -> None:
        """Send SIGKILL to PID 1, which ends everything in the jail. May be repeated."""
        if not self._released:
            try:
                signal.pidfd_send_signal(self.pidfd, signal.SIGKILL)
            except ProcessLookupError:  # `suppress` would be three calls
                return

    async def wait(self) -> None:
        """Return once nothing of the jail is left and its starter has been reaped. A cancelled call
        loses nothing.
        """
        if self._released or self._ended:
            return
        # PID 1 of a PID namespace becomes waitable after all others in it are gone
        # (pid_namespaces(7)).
        if self._waiting is None:
            await trio.lowlevel.wait_readable(self.pidfd)
            return
        async with self._waiting:
            if self._ended:
                return
            await trio.lowlevel.wait_readable(self.pidfd)
            # It became our child if its parent was killed, and we are a subreaper.
            _reap(self.pidfd)
            await self._reap_starter(kill_tree)
            self._ended = True

    async def reap_starter(self) -> None:
        """Reap the process that made the jail if it ends before the jail, as a template's does."""
        if isinstance(self._starter, int):
            with trio.move_on_after(STARTER_GRACE_S):
                await reap_child(self._starter)
        else:
            await self._reap_starter(kill_group)

    async def _reap_starter(self, kill: Callable[[int], None]) -> None:
        if isinstance(self._starter, int):
            await reap_child(self._starter)
        elif self._starter is not None:
            await wait_for_starter(self._starter, kill)

    def stderr_text(self) -> str:
        """Output of the starter and the agent before the agent took its descriptors; bounded. Empty
        once the jail is released, and for a fork.

        It comes out of the jail: show it, but do not trust it. Control characters are removed.
        """
        if self._stderr_fd is not None:
            return read_stderr(self._stderr_fd)
        return "" if self._released else self._stderr_text

    def release(self) -> None:
        """Close the descriptors. May be repeated.

        It does not kill the jail: the agent ends by end-of-file on its socket, unless another
        process holds a duplicate of `socket`.
        """
        if self._released:
            return
        self._released = True
        self.socket.close()
        os.close(self.pidfd)
        if self.project_copy is not None:
            self.project_copy.close()
        self.mark_ready()


class Launcher(Protocol):
    """Launcher of jails of one kind."""

    async def prepare(self, spec: JailSpec) -> None:
        """Wait until the template for many jails is ready, if the launcher uses one.

        This is apart from `launch`, so that jails which wait for one template do not use up the
        limit on launches. `launch` finds out whether there is a template then.
        """
        ...

    async def launch(self, spec: JailSpec, group: int | None = None) -> Jail:
        """Start a jail and return when its agent has begun to speak; cancellation ends it.

        It enters the control group whose `cgroup.procs` is given by descriptor before it gets a
        cgroup namespace, which then shows no other groups. The process that makes the jail may stay
        in the group. If the jail cannot enter it, it starts without.

        Raises `StartFailedError` with the starter's own words, or `BadProjectError` if the
        project's directory is not the one that was checked, or the jail's user cannot read it.
        """
        ...


async def discard(jail: Jail) -> str:
    """End a jail that nobody will use; returns what it wrote to stderr. Shielded; 1 ms."""
    with trio.CancelScope(shield=True):
        jail.kill()
        await jail.wait()
    text = jail.stderr_text()
    jail.release()
    return text


def hang_up(channel: socket.socket) -> None:
    """Stop reading from a channel: a task that waits for data gets end-of-file at once."""
    with suppress(OSError):
        channel.shutdown(socket.SHUT_RD)


async def wait_for_starter(
    starter: subprocess.Popen[bytes], kill: Callable[[int], None] = kill_tree
) -> None:
    """Reap the starter of a jail that is gone or never existed; kill it if it lingers, and the rest
    of its process group in any case. A cancelled call loses nothing.

    `kill` gets its process id; it is `kill_group` if the jail should live on.
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
    """Kill the starter of a jail, and all that it has started so far. Shielded; 1 ms."""
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


async def reap_child(pid: int) -> None:
    """Reap a process that is about to end, if it is our child: then nobody else has its id, and
    nobody else reaps it meanwhile. 0 is none. A cancelled call loses nothing.
    """
    if not pid:
        return
    try:
        pidfd = _open_child(pid)
    except (ChildProcessError, ProcessLookupError):
        return
    try:
        await trio.lowlevel.wait_readable(pidfd)
        _reap(pidfd)
    finally:
        os.close(pidfd)


def _open_child(pid: int) -> int:
    """Open a pidfd of a child of ours; ChildProcessError or ProcessLookupError for others."""
    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    return os.pidfd_open(pid)


def _reap(pidfd: int) -> None:
    """Reap a process that has ended, if it is our child."""
    with suppress(ChildProcessError):
        os.waitid(os.P_PIDFD, pidfd, os.WEXITED | os.WNOHANG)
