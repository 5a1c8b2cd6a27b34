"""The machine, its processes and memory as Linux reports them (proc(5)). Sizes in MB of 1,000,000
bytes.
"""

from __future__ import annotations

import ctypes
import os
import platform
import struct
import sys
import time
from collections.abc import Generator, Iterable
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from resource import RUSAGE_SELF, getrusage, struct_rusage
from typing import Self

from measure import Machine

GONE = (FileNotFoundError, ProcessLookupError)
"""Errors of reading about a process that has ended meanwhile."""

MANY_CORES = 16
"""Number of cores from which on some targets hold."""

TICKS_A_SECOND = os.sysconf("SC_CLK_TCK")

PERF_EVENT_OPEN = {"x86_64": 298, "aarch64": 241}
TASK_CLOCK, PAGE_FAULTS = 1, 2
INHERIT, EXCLUDE_KERNEL, EXCLUDE_HYPERVISOR, CLOSE_ON_EXEC = 2, 32, 64, 8
"""Numbers of asm/unistd.h and linux/perf_event.h."""


@dataclass(frozen=True, slots=True)
class Usage:
    """Processor time, user's and system's together, and page faults."""

    cpu_s: float
    faults: float

    def __sub__(self, other: Usage) -> Usage:
        return Usage(self.cpu_s - other.cpu_s, self.faults - other.faults)

    def __truediv__(self, calls: int) -> Usage:
        return Usage(self.cpu_s / calls, self.faults / calls)


class CountersMissingError(Exception):
    """The kernel counts nothing for us; the message says why."""


class Counters:
    """Usage of whatever this thread starts from now on, in perf_event_open(2)'s counts.

    These are exact, and sums of /proc/PID/stat are not: the kernel itself waits for the processes
    that it kills at the end of a PID namespace, and bubblewrap does not wait for the first process
    of its jail, so no sum includes these.

    Raises:
        CountersMissingError: from the constructor.
    """

    def __init__(self) -> None:
        with ExitStack() as stack:
            self._clock, self._faults = (
                stack.enter_context(open(open_counter(event), "rb", buffering=0))
                for event in (TASK_CLOCK, PAGE_FAULTS)
            )
            self._stack = stack.pop_all()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def usage(self) -> Usage:
        """The usage so far, without this process itself."""
        nanoseconds, faults = (
            int.from_bytes(file.read(8), sys.byteorder) for file in (self._clock, self._faults)
        )
        return Usage(nanoseconds / 1e9, faults) - usage_of(getrusage(RUSAGE_SELF))


def open_counter(event: int) -> int:
    """A descriptor that counts an event of this thread and of what it starts from now on.

    Raises:
        CountersMissingError: the kernel refuses.
    """
    call = PERF_EVENT_OPEN.get(platform.machine())
    if call is None:
        raise CountersMissingError(f"perf_event_open(2) on {platform.machine()} is not known here")
    libc = ctypes.CDLL(None, use_errno=True)
    # Ordinary users may not count page faults in kernel mode, of which there are hardly any.
    for exclude in (0, EXCLUDE_KERNEL | EXCLUDE_HYPERVISOR):
        attributes = struct.pack("=IIQQQQQ", 1, 64, event, 0, 0, 0, INHERIT | exclude).ljust(
            64, b"\0"
        )
        number: int = libc.syscall(call, attributes, 0, -1, -1, CLOSE_ON_EXEC)
        if number >= 0:
            return number
    reason = os.strerror(ctypes.get_errno())
    raise CountersMissingError(
        f"perf_event_open: {reason}; `sysctl kernel.perf_event_paranoid=2` lets users count"
    )


def usage_of(used: struct_rusage) -> Usage:
    """Convert an answer of getrusage(2)."""
    return Usage(used.ru_utime + used.ru_stime, used.ru_minflt + used.ru_majflt)


def usage_of_machine() -> Usage:
    """Usage of everything that runs, interrupts included."""
    words = Path("/proc/stat").read_text(encoding="ascii").split(maxsplit=9)
    user, nice, system, _idle, _waiting, interrupts, soft_interrupts = map(int, words[1:8])
    ticks = user + nice + system + interrupts + soft_interrupts
    return Usage(ticks / TICKS_A_SECOND, counter("/proc/vmstat", "pgfault"))


def threads_cpu_s(roots: Iterable[int]) -> dict[int, float]:
    """The processor time of each thread of processes and all their descendants."""
    taken: dict[int, float] = {}
    for pid in tree(roots):
        with suppress(*GONE):
            for thread in os.listdir(f"/proc/{pid}/task"):
                fields = stat_fields(Path(f"/proc/{pid}/task/{thread}/stat"))
                taken[int(thread)] = sum(map(int, fields[11:13])) / TICKS_A_SECOND
    return taken


def stat_fields(path: Path) -> list[bytes]:
    """Fields of a file `stat`, from the state on: the third one in proc_pid_stat(5) is 0 here."""
    # The name in brackets may hold anything; the state follows the last one.
    return path.read_bytes().rpartition(b")")[2].split()


def counter(path: str, name: str) -> int:
    """A number from a file that has a name and a number in each line."""
    for line in Path(path).read_text(encoding="ascii").splitlines():
        if line.startswith((f"{name} ", f"{name}:")):
            return int(line.split()[1])
    raise AssertionError(f"{path} has no {name} line")


def cores() -> int:
    """Number of cores that we may use."""
    return len(os.sched_getaffinity(0))


@contextmanager
def on_cores(number: int) -> Generator[None]:
    """Use only so many cores in the block; processes that start in it keep that limit."""
    usual = os.sched_getaffinity(0)
    os.sched_setaffinity(0, sorted(usual)[:number])
    try:
        yield
    finally:
        os.sched_setaffinity(0, usual)


def machine() -> Machine:
    """This machine."""
    return Machine(
        cores=cores(),
        memory_gb=counter("/proc/meminfo", "MemTotal") * 1024 / 1e9,
        processor=processor(),
        kernel=platform.release().partition("-")[0],
        python=platform.python_version(),
        user="root" if os.geteuid() == 0 else "an ordinary user",
    )


def processor() -> str:
    """Model of the processor, as it says itself; the architecture where it does not."""
    for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


def pss_mb(pid: int) -> float:
    """A process's proportional share of memory (proc_pid_smaps_rollup(5)).

    Raises:
        PermissionError: the process is not ours to look at. A jail's agent hides from its own user,
            but not from the owner of its user namespace or root (ptrace(2), PTRACE_MODE_READ).
    """
    return counter(f"/proc/{pid}/smaps_rollup", "Pss") * 1024 / 1e6


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
    return counter("/proc/meminfo", "MemAvailable") * 1024 / 1e6


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
        return int(stat_fields(Path(f"/proc/{pid}/stat"))[1])
    return None
