"""Memory and CPU time of the processes in a jail, read from /proc.

In a PID namespace every orphan becomes a child of PID 1, so a jail is its PID 1 and the tree below
it. Reading takes some 30 microseconds a process: call it in a thread for many.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

_READ_BYTES = 65536
"""One read is a consistent view; all but `children` of a fork bomb fit by far."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """What a jail's processes use together.

    Attributes:
        memory_bytes: resident memory that is no file's and nobody else's page. Close to the
            proportional share (PSS), which costs five times as much to ask for.
        cpu_s: seconds of user and system time, that of children that ended included.
        processes: how many there are, zombies included.
    """

    memory_bytes: int
    cpu_s: float
    processes: int


def usage_of(pids: Iterable[int], proc: str = "/proc") -> Mapping[int, Usage]:
    """The usage of each tree of processes.

    Args:
        pids: roots on the host: each jail's PID 1. What is no process id is passed over.
        proc: where procfs is; other than `/proc` in tests only.

    Returns:
        By root. One that is gone has no entry; one below it that vanishes meanwhile is left out.
    """
    page = os.sysconf("SC_PAGE_SIZE")
    tick_s = 1 / os.sysconf("SC_CLK_TCK")
    usages: dict[int, Usage] = {}
    for root in pids:
        found = pages = ticks = 0
        # The kernel promises trees, but we read them while they change: visit nobody twice.
        seen = {root}
        queue = [root] if root > 0 else []
        while queue:
            pid = queue.pop()
            try:
                stat = _fields(f"{proc}/{pid}/stat")
                resident, shared = _read(f"{proc}/{pid}/statm").split()[1:3]
            except (OSError, IndexError, ValueError):
                continue  # gone
            found += 1
            pages += max(0, int(resident) - int(shared))
            ticks += sum(int(field) for field in stat[11:15])
            children = _children(f"{proc}/{pid}/task", pid, threads=int(stat[17])) - seen
            seen |= children
            queue.extend(children)
        if found:
            usages[root] = Usage(memory_bytes=pages * page, cpu_s=ticks * tick_s, processes=found)
    return usages


def _children(tasks: str, pid: int, *, threads: int) -> set[int]:
    """Processes that any thread of a process started; none where the kernel does not tell
    (CONFIG_PROC_CHILDREN)."""
    found: set[int] = set()
    try:
        for task in [str(pid)] if threads == 1 else os.listdir(tasks):
            found.update(int(child) for child in _read(f"{tasks}/{task}/children").split())
    except OSError:
        pass
    return found


def _fields(path: str) -> list[bytes]:
    """The fields of a `stat` file from the third on; the second, a name, may hold anything."""
    return _read(path).rpartition(b")")[2].split()


def _read(path: str) -> bytes:
    # os.open and one read: a third of the cost of open().
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return os.read(fd, _READ_BYTES)
    finally:
        os.close(fd)
