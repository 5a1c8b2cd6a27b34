"""Memory of a session's processes, read from /proc, if no control group counts it.

The first reading is quick and never too small: each process's resident and swapped pages, some 40
us per process. Forks share their parent's pages. So if that is too much, a second reading takes
each process's own share (PSS), up to 3 ms each.

Memory that is held by descriptors alone is added (`held_memory`).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from contextlib import suppress

from nsm.dataclass import dataclass
from nsmd.jail.cgroups.held_memory import HeldMemory

SHARED_WORTH_LOOKING = 16 << 20
"""Bytes of shared memory of a process from which on the kind of that memory is read."""

_MEMORY_FILE = b"/memfd:"
_UNNAMED = (b"/dev/zero", _MEMORY_FILE, b"/SYSV", b"/anon_hugepage")
"""Names in /proc/PID/smaps of shared memory that is in none of the session's file systems. The
sizes of these bound the rest.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Eater:
    """A process, and its memory in bytes."""

    pid: int
    memory_bytes: int


def roughly(pids: Iterable[int], proc: str = "/proc") -> list[Eater]:
    """The largest possible memory of each process; those that are gone are left out,
    reaped or not.
    """
    found: list[Eater] = []
    for pid in pids:
        table = None
        with suppress(PermissionError):  # a procfs that hides others' processes
            table = _kilobytes(f"{proc}/{pid}/status", (b"RssAnon:", b"RssShmem:", b"VmSwap:"))
        if table:
            found.append(Eater(pid=pid, memory_bytes=sum(table.values())))
    return found


def with_held(eaters: Sequence[Eater], held: HeldMemory) -> list[Eater]:
    """Add what each process holds by descriptors."""
    return [
        Eater(pid=each.pid, memory_bytes=each.memory_bytes + int(held.shares.get(each.pid, 0)))
        for each in eaters
    ]


def exactly(
    eaters: Sequence[Eater], proc: str = "/proc", *, without: Collection[int] = ()
) -> list[Eater]:
    """The share of each process; the result of `roughly` if it cannot be read.

    Args:
        eaters: from `roughly`.
        without: inodes of memory files that are counted elsewhere.

    A process may hide from the supervisor's user (prctl(2), PR_SET_DUMPABLE). That makes it count
    for more, not for less.
    """
    return [_exact(eater, proc, without) for eater in eaters]


def _exact(eater: Eater, proc: str, without: Collection[int]) -> Eater:
    folder = f"{proc}/{eater.pid}"
    wanted = (b"Pss_Anon:", b"Pss_Shmem:", b"SwapPss:")
    try:
        table = _kilobytes(f"{folder}/smaps_rollup", wanted)
    except PermissionError:  # it hides
        return eater
    if table is None:  # it has ended
        return Eater(pid=eater.pid, memory_bytes=0)
    shared = table.pop(b"Pss_Shmem:", 0)
    if shared > SHARED_WORTH_LOOKING:
        shared = _unnamed_shared(f"{folder}/smaps", shared, without)
    return Eater(pid=eater.pid, memory_bytes=sum(table.values()) + shared)


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
    """Read lines ``NAME N kB`` of a file, in bytes; None if its process has ended.

    Raises:
        PermissionError: it cannot be read.
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
