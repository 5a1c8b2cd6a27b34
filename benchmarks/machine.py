"""Processes and memory as Linux reports them (proc(5)). Sizes in MB of 1,000,000 bytes."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

GONE = (FileNotFoundError, ProcessLookupError)
"""Errors of reading about a process that has ended meanwhile."""


def pss_mb(pid: int) -> float:
    """A process's proportional share of memory (proc_pid_smaps_rollup(5)).

    Raises:
        PermissionError: the process is not ours to look at. A jail's agent hides from its own user,
            but not from the owner of its user namespace or root (ptrace(2), PTRACE_MODE_READ).
    """
    text = Path(f"/proc/{pid}/smaps_rollup").read_text(encoding="ascii")
    for line in text.splitlines():
        if line.startswith("Pss:"):
            return int(line.split()[1]) * 1024 / 1e6
    raise AssertionError("smaps_rollup has no Pss line")


def pss_of_trees_mb(roots: Iterable[int]) -> float:
    """The proportional share of processes and all their descendants together.

    Raises:
        PermissionError: as for `pss_mb`.
    """
    total = 0.0
    for pid in tree(roots):
        with suppress(*GONE):
            total += pss_mb(pid)
    return total


def resident_mb(pid: int) -> float:
    """A process's resident memory, what it shares with others included; anybody may ask."""
    pages = int(Path(f"/proc/{pid}/statm").read_text(encoding="ascii").split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6


def available_mb() -> float:
    """Memory that is available without swapping, in MB (proc_meminfo(5), MemAvailable)."""
    for line in Path("/proc/meminfo").read_text(encoding="ascii").splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024 / 1e6
    raise AssertionError("meminfo has no MemAvailable line")


def cpu_s(pid: int) -> float:
    """CPU time of a process, its ended threads included, to the nanosecond.

    From its clock, since /proc/PID/stat counts in hundredths of a second, which is as much as an
    idle process uses in a second at the target.
    """
    # As clock_getcpuclockid(3) makes it: the complement of the process id above three bits, of
    # which 2 means scheduled time.
    with suppress(OSError):  # it is gone
        return time.clock_gettime(~pid << 3 | 2)
    return 0.0


def cpu_of_trees_s(roots: Iterable[int]) -> float:
    """CPU time of processes and all their descendants together."""
    return sum(cpu_s(pid) for pid in tree(roots))


def tree(roots: Iterable[int]) -> list[int]:
    """Processes and all their descendants, each once."""
    children: dict[int, list[int]] = {}
    for entry in os.listdir("/proc"):
        if entry.isdigit() and (parent := parent_of(int(entry))) is not None:
            children.setdefault(parent, []).append(int(entry))
    found: list[int] = []
    seen: set[int] = set()
    queue = list(roots)
    while queue:
        pid = queue.pop()
        if pid not in seen:
            seen.add(pid)
            found.append(pid)
            queue += children.get(pid, [])
    return found


def parent_of(pid: int) -> int | None:
    """The parent's process id; None if the process is gone."""
    with suppress(*GONE):
        stat = Path(f"/proc/{pid}/stat").read_bytes()
        # The name in brackets may hold anything; state and parent follow the last one.
        return int(stat.rpartition(b")")[2].split()[1])
    return None
