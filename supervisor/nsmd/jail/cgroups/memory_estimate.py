"""How much memory a session's processes have, read from /proc, where no control group counts it.

First what is quick and never too little: each process's resident and swapped pages, some 40 us a
process. Forks have their parent's pages in common, so only where that is too much it is asked what
is a process's own share (PSS), which takes up to 3 ms each.

What is in nobody's address space is not seen: a memory file that is only written to, a detached
System V segment, buffers of pipes and sockets. Only a control group counts those.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass

SHARED_WORTH_LOOKING = 16 << 20
"""Bytes of shared memory of a process from which on it is asked what that is."""

_UNNAMED = (b"/dev/zero", b"/memfd:", b"/SYSV", b"/anon_hugepage")
"""How shared memory is called in /proc/PID/smaps that is in none of the session's file systems,
whose sizes bound theirs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Eater:
    """A process and the bytes that it has."""

    pid: int
    memory_bytes: int


def roughly(pids: Iterable[int], proc: str = "/proc") -> list[Eater]:
    """The most that each can have; those that are gone are left out, reaped or not."""
    found: list[Eater] = []
    for pid in pids:
        table = None
        with suppress(PermissionError):  # a procfs that hides others' processes
            table = _kilobytes(f"{proc}/{pid}/status", (b"RssAnon:", b"RssShmem:", b"VmSwap:"))
        if table:
            found.append(Eater(pid=pid, memory_bytes=sum(table.values())))
    return found


def exactly(eaters: Sequence[Eater], proc: str = "/proc") -> list[Eater]:
    """The share of each; of one that cannot be looked into, what `roughly` said.

    A process may hide itself from the supervisor's user (prctl(2), PR_SET_DUMPABLE). That makes it
    count for more, not for less.
    """
    return [_exact(eater, proc) for eater in eaters]


def _exact(eater: Eater, proc: str) -> Eater:
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
        shared = _unnamed_shared(f"{folder}/smaps", shared)
    return Eater(pid=eater.pid, memory_bytes=sum(table.values()) + shared)


def _unnamed_shared(path: str, otherwise: int) -> int:
    """Bytes of shared memory that no size of a file system bounds."""
    total = 0
    counts = False
    try:
        with open(path, "rb") as file:
            for line in file:
                name = line.split(None, 1)[0]
                if not name.endswith(b":"):  # the first line of a mapping
                    mapped = line.split(None, 5)
                    counts = len(mapped) == 6 and mapped[5].startswith(_UNNAMED)
                elif counts and name == b"Pss:":
                    total += int(line.split()[1]) << 10
    except (OSError, ValueError, IndexError):
        return otherwise
    return total


def _kilobytes(path: str, names: Sequence[bytes]) -> dict[bytes, int] | None:
    """Lines ``NAME N kB`` of a file, in bytes; None if its process has ended.

    Raises:
        PermissionError: it cannot be looked into.
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
