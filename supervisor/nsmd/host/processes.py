"""Processes as /proc shows them. Standard library only, since monitors use it, too."""

from __future__ import annotations

import os
import select
import signal
from contextlib import suppress
from typing import NamedTuple

_READ_BYTES = 4096
"""One read is a consistent view, and these files are shorter. The cost depends on the requested
size, and there are three reads for each of thousands of processes.
"""

_GONE = (FileNotFoundError, ProcessLookupError)


class ProcessStat(NamedTuple):
    """Running process: process id, parent's, session's, state (a letter), start time."""

    pid: int
    parent: int
    session: int
    state: str
    began: int


def read(path: str, size: int = _READ_BYTES, *, whole: bool = False) -> bytes:
    """Read the beginning of a file of /proc, or all of it, at a third of the cost of open().

    Raises:
        OSError: as of open(2) and read(2).
    """
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        text = piece = os.read(fd, size)
        while whole and piece:  # the kernel gives a page at a time
            piece = os.read(fd, size)
            text += piece
        return text
    finally:
        os.close(fd)


def stat_fields(pid: int | str, proc: str = "/proc") -> tuple[bytes, list[bytes]]:
    """Read the name of a process, and the fields of its `stat` from the third on
    (proc_pid_stat(5)).

    Raises:
        OSError: it is gone, or cannot be read.
    """
    # The name in brackets may contain anything; the text after the last bracket is plain.
    head, _, tail = read(f"{proc}/{pid}/stat").rpartition(b")")
    return head.partition(b"(")[2], tail.split()


def look_at(pid: int, proc: str = "/proc") -> ProcessStat | None:
    """Read one process; None if it is gone, or hidden from us.

    Args:
        proc: directory of procfs; other than `/proc` in tests only.

    Raises:
        OSError: there is no free descriptor.
    """
    try:
        _, words = stat_fields(pid, proc)
    except (*_GONE, PermissionError):
        return None
    return ProcessStat(pid, int(words[1]), int(words[3]), words[0].decode(), int(words[19]))


def processes() -> list[ProcessStat]:
    """All processes that this one can see."""
    found = (look_at(int(name)) for name in os.listdir("/proc") if name.isdecimal())
    return [process for process in found if process is not None]


def children_of(pid: int, proc: str = "/proc", *, threads: int = 0) -> set[int]:
    """Process ids of the children of a process, unreaped ones included.

    Args:
        proc: where procfs is; other than `/proc` in tests only.
        threads: number of its threads, if known.

    Returns:
        Nothing if it is gone, or if the kernel does not tell (CONFIG_PROC_CHILDREN).

    Raises:
        OSError: there is no free descriptor.
    """
    found: set[int] = set()
    with suppress(*_GONE):
        for task in [pid] if threads == 1 else os.listdir(f"{proc}/{pid}/task"):
            found.update(map(int, read(f"{proc}/{pid}/task/{task}/children", whole=True).split()))
    return found


def tree_of(root: int, proc: str = "/proc") -> list[int]:
    """Process ids of a process and all below it; children of unreadable processes are missing."""
    queue, seen = [root], {root}
    for parent in queue:
        with suppress(OSError):
            fresh = children_of(parent, proc) - seen
            seen |= fresh
            queue += sorted(fresh)
    return queue


def inner_pids(pid: int, proc: str = "/proc") -> list[int]:
    """Read the ids of a process in each namespace, from ours to its own (proc_pid_status(5):
    NSpid).

    Raises:
        OSError: it is gone, or cannot be read.
    """
    _, _, rest = read(f"{proc}/{pid}/status", whole=True).partition(b"\nNSpid:")
    return [int(number) for number in rest.partition(b"\n")[0].split()]


def pid_of(descriptor: int) -> int | None:
    """Process id of a pidfd (proc_pid_fdinfo(5)): 0 if the process is gone, or in no namespace of
    ours; None if the descriptor is no pidfd.

    The kernel says -1 of one that is gone, which for kill(2) means all of the user's processes.
    """
    try:
        _, found, rest = read(f"/proc/self/fdinfo/{descriptor}").partition(b"\nPid:")
        return max(0, int(rest.partition(b"\n")[0])) if found else None
    except (OSError, ValueError):
        return None


def has_ended(pidfd: int) -> bool:
    """Return whether the process of a pidfd is gone."""
    poll = select.poll()
    poll.register(pidfd, select.POLLIN)
    return bool(poll.poll(0))


def signal_child(pid: int, number: int) -> None:
    """Signal a child of ours; nobody, if it has been reaped or never was one."""
    if _is_child(pid):
        os.kill(pid, number)


def signal_group(leader: int, number: int) -> None:
    """Signal the process group that a child of ours leads; nobody, if it has been reaped."""
    if _is_child(leader):
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(leader, number)


def _is_child(pid: int) -> bool:
    """Return whether a number is that of a child, which keeps it until it is reaped."""
    assert pid > 1, "for kill(2), 0 and -1 are groups of processes"
    try:
        os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return False
    return True


def send(process: ProcessStat, *numbers: signal.Signals) -> None:
    """Send signals to a process that was read before, and to no later one with its number.

    Raises:
        ProcessLookupError: it has ended.
        PermissionError: we may not signal it.
    """
    pidfd = os.pidfd_open(process.pid)
    try:
        found = look_at(process.pid)
        if found is None or found.began != process.began:
            raise ProcessLookupError
        for number in numbers:
            signal.pidfd_send_signal(pidfd, number)
    finally:
        os.close(pidfd)
