"""Unused memory goes back to the system."""

from __future__ import annotations

import ctypes

_M_MMAP_THRESHOLD = -3  # malloc.h
_LARGE_BYTES = 96 * 1024
"""Larger than a read from a socket (64 KiB), which each call does; smaller than a piece
of output.
"""


def map_large_blocks() -> None:
    """Give each large block pages of its own (mallopt(3), M_MMAP_THRESHOLD).

    glibc does so at first, but raises the threshold to 32 MiB as such blocks are freed. Outputs of
    megabytes then lie in the heap between small objects that stay, and after a burst the supervisor
    kept three times the memory that it used.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:  # other C libraries have neither this function nor this habit
        mallopt(_M_MMAP_THRESHOLD, _LARGE_BYTES)
