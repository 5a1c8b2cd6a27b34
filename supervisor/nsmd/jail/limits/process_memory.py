"""Memory of a session's processes, read from /proc, if no control group counts it.

The first reading is quick and never too small: each process's resident and swapped pages, some 40
us per process. Forks share their parent's pages. So if that is too much, a second reading takes
each process's own share (PSS), up to 3 ms each.

Memory files, pipes and sockets that processes hold by descriptors alone are in nobody's address
space; `held_memory` reads /proc/PID/fd for them. Descriptors on their way through a socket, and
detached System V segments, are in no process, and are not seen.
"""

from __future__ import annotations

import array
import ctypes
import fcntl
import functools
import os
import random
import socket
import struct
import termios
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Self

from nsm.dataclass import dataclass, field

SHARED_WORTH_LOOKING = 16 << 20
"""Bytes of shared memory of a process from which on the kind of that memory is read."""

_MEMORY_FILE = b"/memfd:"
_UNNAMED = (b"/dev/zero", _MEMORY_FILE, b"/SYSV", b"/anon_hugepage")
"""Names in /proc/PID/smaps of shared memory that is in none of the session's file systems. The
sizes of these bound the rest.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessMemory:
    """A process, and its memory in bytes."""

    pid: int
    memory_bytes: int


def rough_memory(pids: Iterable[int], proc: str = "/proc") -> list[ProcessMemory]:
    """The largest possible memory of each process; those that are gone are left out,
    reaped or not.
    """
    found: list[ProcessMemory] = []
    for pid in pids:
        table = None
        with suppress(PermissionError):  # a procfs that hides others' processes
            table = _kilobytes(f"{proc}/{pid}/status", (b"RssAnon:", b"RssShmem:", b"VmSwap:"))
        if table:
            found.append(ProcessMemory(pid=pid, memory_bytes=sum(table.values())))
    return found


def with_held(by_process: Sequence[ProcessMemory], held: HeldMemory) -> list[ProcessMemory]:
    """Add what each process holds by descriptors."""
    return [
        ProcessMemory(
            pid=each.pid, memory_bytes=each.memory_bytes + int(held.shares.get(each.pid, 0))
        )
        for each in by_process
    ]


def exact_memory(
    by_process: Sequence[ProcessMemory], proc: str = "/proc", *, without: Collection[int] = ()
) -> list[ProcessMemory]:
    """The share of each process; the result of `rough_memory` if it cannot be read. Memory files
    with the inodes `without` are counted elsewhere.

    A process may hide from the supervisor's user (prctl(2), PR_SET_DUMPABLE). That makes it count
    for more, not for less.
    """
    return [_exact(process, proc, without) for process in by_process]


def _exact(process: ProcessMemory, proc: str, without: Collection[int]) -> ProcessMemory:
    folder = f"{proc}/{process.pid}"
    wanted = (b"Pss_Anon:", b"Pss_Shmem:", b"SwapPss:")
    try:
        table = _kilobytes(f"{folder}/smaps_rollup", wanted)
    except PermissionError:  # it hides
        return process
    if table is None:  # it has ended
        return ProcessMemory(pid=process.pid, memory_bytes=0)
    shared = table.pop(b"Pss_Shmem:", 0)
    if shared > SHARED_WORTH_LOOKING:
        shared = _unnamed_shared(f"{folder}/smaps", shared, without)
    return ProcessMemory(pid=process.pid, memory_bytes=sum(table.values()) + shared)


def _unnamed_shared(path: str, otherwise: int, without: Collection[int]) -> int:
    """Bytes of shared memory that no file system's size bounds."""
    total = 0
    counts = False
    try:
        with open(path, "rb") as file:
            for line in file:
                name = line.split(None, 1)[0]
                if not name.endswith(b":"):  # the first line of a mapping
                    mapped = line.split(None, 5)
                    counts = len(mapped) == 6 and mapped[5].startswith(_UNNAMED)
                    if counts and mapped[5].startswith(_MEMORY_FILE):
                        counts = int(mapped[4]) not in without
                elif counts and name == b"Pss:":
                    total += int(line.split()[1]) << 10
    except (OSError, ValueError, IndexError):
        return otherwise
    return total


def _kilobytes(path: str, names: Sequence[bytes]) -> dict[bytes, int] | None:
    """Read lines ``NAME N kB`` of a file, in bytes; None if its process has ended. Raises
    PermissionError if it cannot be read.
    """
    found: dict[bytes, int] = {}
    try:
        with open(path, "rb") as file:
            for line in file:
                name, _, rest = line.partition(b"\t" if b"\t" in line else b" ")
                if name in names:
                    found[name] = int(rest.split()[0]) << 10
    except PermissionError:
        raise
    except (OSError, ValueError, IndexError):
        return None
    return found


MOST_DESCRIPTORS = 2048
"""Largest number of descriptors to look at, some 10 us each. If there are more, a look takes those
of some processes, and the next one those of others.
"""

_PIDFD_GETFD = 438  # asm-generic/unistd.h
_F_GETPIPE_SZ = 1032  # linux/fcntl.h
_SO_MEMINFO = 55  # asm-generic/socket.h

_READ, _SENT, _QUEUED = 0, 2, 5
"""Places in what `SO_MEMINFO` gives (linux/sock_diag.h)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldMemory:
    """Memory of some processes by descriptors, in bytes: of each kind, each object once; `shares`
    by process, where what several hold is divided between them; and the inodes of the memory files.
    """

    memory_files: int = 0
    pipes: int = 0
    sockets: int = 0
    shares: Mapping[int, float] = field(default_factory=dict[int, float])
    inodes: frozenset[int] = frozenset()


def held_memory(pids: Iterable[int], proc: str = "/proc") -> HeldMemory:
    """Add up what these processes hold; those that are gone, or cannot be read, are left out."""
    shuffled = list(pids)
    random.shuffle(shuffled)
    holders: dict[str, set[int]] = {}
    sizes: dict[str, int] = {}
    inodes: set[int] = set()
    left = MOST_DESCRIPTORS
    for pid in shuffled:
        with suppress(OSError), _Process(pid, proc) as process:
            for name in os.listdir(f"{proc}/{pid}/fd"):
                left -= 1
                if left < 0:
                    break
                with suppress(OSError):
                    kind = os.readlink(f"{proc}/{pid}/fd/{name}")
                    if kind.startswith("/memfd:"):
                        found = os.stat(f"{proc}/{pid}/fd/{name}")
                        kind = f"/memfd:{found.st_ino}"
                        inodes.add(found.st_ino)
                        sizes[kind] = found.st_blocks * 512
                    elif not kind.startswith(("pipe:", "socket:")):
                        continue
                    elif kind not in sizes:
                        sizes[kind] = process.buffered(
                            int(name), _in_pipe if kind.startswith("pipe:") else _in_socket
                        )
                    holders.setdefault(kind, set()).add(pid)
        if left < 0:
            break
    shares: dict[int, float] = {}
    totals = {"/memfd": 0, "pipe": 0, "socket": 0}
    for kind, who in holders.items():
        totals[kind.partition(":")[0]] += sizes[kind]
        for pid in who:
            shares[pid] = shares.get(pid, 0) + sizes[kind] / len(who)
    return HeldMemory(
        memory_files=totals["/memfd"],
        pipes=totals["pipe"],
        sockets=totals["socket"],
        shares=shares,
        inodes=frozenset(inodes),
    )


class _Process:
    """A process whose pipes and sockets are asked for what is in them."""

    def __init__(self, pid: int, proc: str) -> None:
        self._pid = pid
        self._pidfd: int | None = -1 if proc == "/proc" else None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._pidfd is not None and self._pidfd >= 0:
            os.close(self._pidfd)

    def buffered(self, number: int, measure: Callable[[int], int]) -> int:
        """Bytes in a pipe or a socket; 0 if the kernel gives us no descriptor of it.

        /proc tells no sizes of these. A copy of the descriptor does, for an instant.
        """
        if self._pidfd is None:
            return 0
        if self._pidfd < 0:
            self._pidfd = os.pidfd_open(self._pid)
        taken = _libc().syscall(_PIDFD_GETFD, self._pidfd, number, 0)
        if taken < 0:
            return 0
        try:
            return measure(taken)
        finally:
            os.close(taken)


def _in_pipe(number: int) -> int:
    """Memory of a pipe: all of it if anything is in it, since one byte may take a page."""
    waiting = array.array("i", [0])
    fcntl.ioctl(number, termios.FIONREAD, waiting)
    return fcntl.fcntl(number, _F_GETPIPE_SZ) if waiting[0] else 0


def _in_socket(number: int) -> int:
    # What kind of socket it is said to be does not matter here, and is not asked for.
    it = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM, 0, fileno=number)
    try:
        told = it.getsockopt(socket.SOL_SOCKET, _SO_MEMINFO, 9 * 4)
    finally:
        it.detach()
    counts = struct.unpack(f"{len(told) // 4}I", told)
    return int(counts[_READ] + max(counts[_SENT], counts[_QUEUED]))


@functools.cache  # a new one each time costs more than the rest of a look
def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)
