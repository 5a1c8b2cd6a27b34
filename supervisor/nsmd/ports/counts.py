"""Counts of ports, in a memory file that a relay writes and the supervisor reads.

So the supervisor need not ask, and the counts outlive either of them. Standard library only.
"""

from __future__ import annotations

import os
import struct
import sys

SLOTS = 64
"""Places for ports."""

OPEN, TOTAL, REFUSED, FAILED, SENT, RECEIVED, FULL = range(7)
"""Counts of a port: connections now and in all, those that no program took inside and those that
failed otherwise, bytes into the session and out of it, and 1 while more connections wait because
there are too many.
"""

EACH = 8
"""Number of counts that there is room for."""

_SLOT = struct.Struct(f"={EACH}Q")

FILE_BYTES = SLOTS * _SLOT.size


def read_counts(file: int, slot: int) -> tuple[int, ...]:
    """Read the counts of a port from the memory file."""
    counts: tuple[int, ...] = _SLOT.unpack(os.pread(file, _SLOT.size, slot * _SLOT.size))
    return counts


def clear_counts(file: int, slot: int) -> None:
    """Set the counts of a new port to 0."""
    os.pwrite(file, bytes(_SLOT.size), slot * _SLOT.size)


class PortCounts:
    """Counts of one port, in the relay; the file is mapped, so that one costs no system call."""

    def __init__(self, memory: memoryview, slot: int) -> None:
        self._place: memoryview | None = memory[slot * _SLOT.size : (slot + 1) * _SLOT.size]
        for which in (OPEN, FULL):  # as an earlier relay has left them
            self._place[8 * which : 8 * which + 8] = bytes(8)

    def add(self, which: int, number: int) -> None:
        """Add to a count."""
        if self._place is not None:
            field = self._place[8 * which : 8 * which + 8]
            known = int.from_bytes(field, sys.byteorder)
            field[:] = max(0, known + number).to_bytes(8, sys.byteorder)

    def leave(self) -> None:
        """Count no more: the port is closed, and the place may become another's."""
        self._place = None
