"""The memory that the agent shares with a Python worker, and the signal between them."""

from __future__ import annotations

import fcntl
import mmap
import os
import signal

from sandbox.linux import c_library

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence


_INTERRUPTIBLE, _AWAITED, _PRIVATE, _PENDING = 0, 1, 2, 6
"""Places of the numbers; four descriptors from `_PRIVATE` on."""

INTERRUPT = signal.SIGURG
"""Stands in for a SIGINT that would be ignored. Ignored itself where code has its own use."""

MAP_FIXED = 0x10


class SharedPage:
    """Numbers of executions in memory that the agent shares with a Python worker.

    One side writes each of them, and the other reads it when it interrupts code, so that a call
    that nobody interrupts wakes nobody for that. Code can write to it as well: all that it decides
    is whether an interrupt of that code is sent at once, later or never.
    """

    def __init__(self, fd: int) -> None:
        self._memory = mmap.mmap(fd, mmap.PAGESIZE)  # shared, and there without the descriptor
        self._numbers = memoryview(self._memory).cast("Q")

    @staticmethod
    def make_file() -> int:
        """A descriptor for `SharedPage`. Nobody can shorten the file below the feet of another."""
        fd = os.memfd_create("shared", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        try:
            os.ftruncate(fd, mmap.PAGESIZE)
            fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_SEAL)
        except BaseException:
            os.close(fd)
            raise
        return fd

    def unmap(self) -> None:
        """Put a page of this process's own in its place; other processes keep the shared page.

        Not by `mmap.close`: that closes a descriptor, too, whose number is another file's in a
        process that has closed all that it inherited.
        """
        import ctypes

        library = c_library()
        library.mmap.restype = ctypes.c_void_p
        place = ctypes.c_void_p(ctypes.addressof(ctypes.c_char.from_buffer(self._memory)))
        writable, own = mmap.PROT_READ | mmap.PROT_WRITE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
        library.mmap(place, mmap.PAGESIZE, writable, own | MAP_FIXED, -1, ctypes.c_long(0))

    def clear(self) -> None:
        """Forget the executions of a worker that has ended."""
        self.interruptible = self.awaited = self.pending_interrupt = 0

    @property
    def interruptible(self) -> int:
        """The execution whose code takes signals, or took them last; the worker's to write."""
        return self._numbers[_INTERRUPTIBLE]

    @interruptible.setter
    def interruptible(self, number: int) -> None:
        self._numbers[_INTERRUPTIBLE] = number

    @property
    def awaited(self) -> int:
        """The execution whose `started` the agent wants to be sent; the agent's to write."""
        return self._numbers[_AWAITED]

    @awaited.setter
    def awaited(self, number: int) -> None:
        self._numbers[_AWAITED] = number

    @property
    def pending_interrupt(self) -> int:
        """The execution whose interrupt waits for its event loop; the worker's to write."""
        return self._numbers[_PENDING]

    @pending_interrupt.setter
    def pending_interrupt(self, number: int) -> None:
        self._numbers[_PENDING] = number

    def show_descriptors(self, descriptors: Sequence[int]) -> None:
        """Show whoever forks the worker from outside which descriptors are private: the control
        socket, and what 0, 1 and 2 are put back from. The worker's to write."""
        for place, fd in enumerate(descriptors, _PRIVATE):
            self._numbers[place] = fd
