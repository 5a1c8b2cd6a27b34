"""Processes as /proc shows them: their trees, and the memory and processor time of those in a jail.

Standard library only, since monitors use it, too.
"""

from __future__ import annotations

import os
import select
import signal
import time
from collections.abc import Iterable, Mapping
from contextlib import suppress

from nsm.dataclass import dataclass
from nsm.wire.tuples import NamedTuple

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


def read_proc(path: str, size: int = _READ_BYTES, *, whole: bool = False) -> bytes:
    """Read the beginning of a file of /proc, or all of it, at a third of the cost of open()."""
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
    (proc_pid_stat(5)). Raises `OSError`.
    """
    # The name in brackets may contain anything; the text after the last bracket is plain.
    head, _, tail = read_proc(f"{proc}/{pid}/stat").rpartition(b")")
    return head.partition(b"(")[2], tail.split()


def read_process(pid: int, proc: str = "/proc") -> ProcessStat | None:
    """Read one process; None if it is gone, or hidden from us."""
    try:
        _, words = stat_fields(pid, proc)
    except (*_GONE, PermissionError):
        return None
    return ProcessStat(pid, int(words[1]), int(words[3]), words[0].decode(), int(words[19]))


def processes() -> list[ProcessStat]:
    """All processes that this one can see."""
    found = (read_process(int(name)) for name in os.listdir("/proc") if name.isdecimal())
    return [process for process in found if process is not None]


def children_of(pid: int, proc: str = "/proc", *, threads: int = 0) -> set[int]:
    """Process ids of the children of a process, unreaped ones included.

    Returns:
        Nothing if it is gone, or if the kernel does not tell (CONFIG_PROC_CHILDREN).
    """
    found: set[int] = set()
    with suppress(*_GONE):
        for task in [pid] if threads == 1 else os.listdir(f"{proc}/{pid}/task"):
            found.update(
                map(int, read_proc(f"{proc}/{pid}/task/{task}/children", whole=True).split())
            )
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
    NSpid). Raises `OSError`.
    """
    _, _, rest = read_proc(f"{proc}/{pid}/status", whole=True).partition(b"\nNSpid:")
    return [int(number) for number in rest.partition(b"\n")[0].split()]


def pid_of(descriptor: int) -> int | None:
    """Process id of a pidfd (proc_pid_fdinfo(5)): 0 if the process is gone, or in no namespace of
    ours; None if the descriptor is no pidfd.

    The kernel says -1 of one that is gone, which for kill(2) means all of the user's processes.
    """
    try:
        _, found, rest = read_proc(f"/proc/self/fdinfo/{descriptor}").partition(b"\nPid:")
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


def send_signals(process: ProcessStat, *numbers: signal.Signals) -> None:
    """Send signals to a process that was read before, and to no later one with its number.

    Raises `ProcessLookupError` or `PermissionError`.
    """
    pidfd = os.pidfd_open(process.pid)
    try:
        found = read_process(process.pid)
        if found is None or found.began != process.began:
            raise ProcessLookupError
        for number in numbers:
            signal.pidfd_send_signal(pidfd, number)
    finally:
        os.close(pidfd)


_COMMAND_BYTES = 300
"""Bytes of a command line to show."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """Memory and CPU time of all a jail's processes together.

    Attributes:
        memory_bytes: approximate memory that they share with nothing else (`_own_pages`). The
            proportional share (PSS) would be exact, but costs ten times as much, and cannot be read
            for processes that must not be traced, such as agents.
        processes: number of processes, zombies included.
    """

    memory_bytes: int
    cpu_s: float
    processes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class JailProcess:
    """One process of a jail.

    Attributes:
        pid: process id on the host; `inside`: in the jail.
        name: name in the kernel, at most 15 bytes; `command`: beginning of its arguments. The
            process itself chooses both.
    """

    pid: int
    inside: int
    name: str
    command: str
    state: str
    memory_bytes: int
    cpu_s: float
    threads: int


def processes_of(root: int, most: int, proc: str = "/proc") -> list[JailProcess]:
    """List the processes of one jail, parents before children, without those that end meanwhile."""
    page, tick_s = os.sysconf("SC_PAGE_SIZE"), 1 / os.sysconf("SC_CLK_TCK")
    found: list[JailProcess] = []
    seen = {root}
    queue = [root] if root > 0 else []
    while queue and len(found) < most:
        pid = queue.pop(0)
        try:
            name, stat = stat_fields(pid, proc)
            threads = int(stat[17])
            found.append(
                JailProcess(
                    pid=pid,
                    inside=[pid, *inner_pids(pid, proc)][-1],
                    name=name.decode("utf-8", "replace"),
                    command=_command(f"{proc}/{pid}/cmdline"),
                    state=stat[0].decode("ascii", "replace"),
                    memory_bytes=_anonymous_pages(f"{proc}/{pid}/statm") * page,
                    cpu_s=(int(stat[11]) + int(stat[12])) * tick_s,
                    threads=threads,
                )
            )
            children = sorted(children_of(pid, proc, threads=threads) - seen)
        except (OSError, IndexError, ValueError):
            continue  # gone
        seen.update(children)
        queue.extend(children)
    return found


def _command(path: str) -> str:
    try:
        words = read_proc(path, _COMMAND_BYTES).rstrip(b"\0").split(b"\0")
    except OSError:
        return ""
    return b" ".join(words).decode("utf-8", "replace")


FEWEST_KNOWN = 1000
"""Number of remembered jails above which those that are gone are forgotten."""

ProcessorTimes = dict[int, int | None]
"""Processor time of each process of a jail, in nanoseconds; None if the kernel does not tell."""


class UsageReader:
    """Reader of the usage of thousands of jails, which measures a jail again only if it has run.

    The kernel tells the processor time of a process to the nanosecond, without a file. If no
    process of a jail has used any, none has started, ended or got memory since. (The kernel may
    have taken memory from it because memory was short. That is noticed when something runs.)
    """

    def __init__(self) -> None:
        self._known: dict[int, tuple[Usage, ProcessorTimes]] = {}
        self._clean_at = FEWEST_KNOWN

    def __repr__(self) -> str:
        return f"<UsageReader of {len(self._known)} jails>"

    def usage_of(self, pids: Iterable[int]) -> Mapping[int, Usage]:
        """Find the usage of each tree of processes; arguments and answer as for `usage_of`. It may
        be called in any thread, in several at a time.
        """
        found: dict[int, Usage] = {}
        changed: list[int] = []
        for root in pids:
            known = self._known.get(root)
            if known is not None and _has_rested(known[1]):
                found[root] = known[0]
            else:
                changed.append(root)
        times: dict[int, ProcessorTimes] = {}
        measured = usage_of(changed, times=times)
        for root, usage in measured.items():
            self._known[root] = usage, times[root]
        if len(self._known) > self._clean_at:
            alive = {root: each for root, each in list(self._known.items()) if _time_of(root)}
            self._known, self._clean_at = alive, max(FEWEST_KNOWN, 2 * len(alive))
        return {**found, **measured}


def _time_of(pid: int) -> int | None:
    """Processor time of a process and its threads, in nanoseconds; None if it is gone."""
    try:
        return time.clock_gettime_ns(~pid << 3 | 2)  # clock_getcpuclockid(3)
    except OSError:
        return None


def _has_rested(times: ProcessorTimes) -> bool:
    """Return whether none of these processes has run since."""
    return all(before is not None and _time_of(pid) == before for pid, before in times.items())


def usage_of(
    pids: Iterable[int], proc: str = "/proc", *, times: dict[int, ProcessorTimes] | None = None
) -> Mapping[int, Usage]:
    """Measure the usage of each tree of processes.

    Args:
        pids: roots on the host: each jail's PID 1. Invalid process ids are skipped.
        times: gets the processor times of each tree, as they were before it was measured.

    Returns:
        Usage by root. A root that is gone has no entry; a process below that ends meanwhile is left
            out.
    """
    page = os.sysconf("SC_PAGE_SIZE")
    tick_s = 1 / os.sysconf("SC_CLK_TCK")
    usages: dict[int, Usage] = {}
    templates: dict[int, int] = {}  # anonymous pages by parent of a root
    for root in pids:
        found = pages = ticks = 0
        own_times: ProcessorTimes = {}
        # The kernel promises trees, but we read them while they change: visit each process only
        # once.
        seen = {root}
        queue: list[tuple[int, int | None]] = [(root, None)] if root > 0 else []
        while queue:
            pid, inherited = queue.pop()
            if times is not None:
                own_times[pid] = _time_of(pid)
            try:
                _, stat = stat_fields(pid, proc)
                anonymous = _anonymous_pages(f"{proc}/{pid}/statm")
                faults = int(stat[7]) + int(stat[9])
                parent, threads = int(stat[1]), int(stat[17])
                ticks += sum(map(int, stat[11:15]))
                children = children_of(pid, proc, threads=threads) - seen
            except (OSError, IndexError, ValueError):
                continue  # gone
            if inherited is None:
                if parent not in templates:
                    templates[parent] = _pages_of_parent(f"{proc}/{parent}/statm")
                inherited = templates[parent]
            found += 1
            pages += _own_pages(anonymous, faults, inherited)
            seen |= children
            queue.extend((child, anonymous) for child in children)
        if found:
            usages[root] = Usage(memory_bytes=pages * page, cpu_s=ticks * tick_s, processes=found)
            if times is not None:
                times[root] = own_times
    return usages


def _own_pages(anonymous: int, faults: int, inherited: int) -> int:
    """Estimate how many of a process's pages it does not share.

    A fork has all of its parent's pages and shares those that neither has written to. Each page
    that it made or copied took a page fault, so the number of faults is an upper bound. But a fault
    may have brought a huge page of hundreds, so there are at least as many as its parent cannot
    have given.

    Args:
        faults: page faults since it was forked (proc_pid_stat(5): minflt, majflt).
        inherited: its parent's anonymous pages, which are the most that it was given.
    """
    return max(anonymous - inherited, min(anonymous, faults))


def _anonymous_pages(path: str) -> int:
    resident, shared = read_proc(path).split()[1:3]
    return max(0, int(resident) - int(shared))


def _pages_of_parent(path: str) -> int:
    try:
        return _anonymous_pages(path)
    except (OSError, ValueError):
        return 0  # we may not read it, or it is gone


def share_of(pid: int, proc: str = "/proc") -> int | None:
    """Measure the proportional share (PSS) of a process in memory, in bytes; resident memory that
    belongs to no file if we may not read the share; None if it is gone. Up to 3 ms.
    """
    with suppress(OSError):
        for line in read_proc(f"{proc}/{pid}/smaps_rollup").splitlines():
            name, _, value = line.partition(b":")
            number = value.removesuffix(b"kB").strip()
            if name == b"Pss" and number.isdigit():
                return int(number) * 1024
    with suppress(OSError, ValueError):
        return _anonymous_pages(f"{proc}/{pid}/statm") * os.sysconf("SC_PAGE_SIZE")
    return None
