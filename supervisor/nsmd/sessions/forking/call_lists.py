"""Lists of system calls that a stopped process makes with one stop; a stop for each takes longer.

The tracer maps a few instructions into the process. They read a list that the tracer has written,
and write each result beside its call. Nothing else runs there meanwhile, as the process has one
thread and memory of its own.
"""

from __future__ import annotations

import struct

from nsmd.sessions.forking.ptrace import CALLS, CallError, Traced, checked

_CODE = bytes.fromhex(
    "488b03"  # next: mov rax, [rbx]
    "4883f8ff"  # cmp rax, -1
    "7424"  # je end
    "488b7b08"  # mov rdi, [rbx + 8]
    "488b7310"  # mov rsi, [rbx + 16]
    "488b5318"  # mov rdx, [rbx + 24]
    "4c8b5320"  # mov r10, [rbx + 32]
    "4c8b4328"  # mov r8, [rbx + 40]
    "4c8b4b30"  # mov r9, [rbx + 48]
    "0f05"  # syscall
    "48894338"  # mov [rbx + 56], rax
    "4883c340"  # add rbx, 64
    "ebd3"  # jmp next
    "cc"  # end: int3
)

_ENTRY = struct.Struct("8Q")
_MASK = (1 << 64) - 1

_LIST_AT, _DATA_AT, _SIZE = 4096, 64 * 1024, 192 * 1024
_MOST_CALLS = (_DATA_AT - _LIST_AT) // _ENTRY.size - 1

_ALL, _PRIVATE_ANONYMOUS = 7, 0x22


class CallLists:
    """Memory of a stopped process, and of what is forked from it, for lists of calls.

    Args:
        traced: the process.
        site: address of a system call instruction in it.

    Raises:
        CallError: the kernel gives it no memory.
    """

    def __init__(self, traced: Traced, site: int) -> None:
        self._site = site
        nothing = -1
        self._address = traced.call(
            "mmap", 0, _SIZE, _ALL, _PRIVATE_ANONYMOUS, nothing, 0, site=site
        )
        traced.poke(self._address, _CODE)

    def unmap(self, traced: Traced) -> None:
        traced.call("munmap", self._address, _SIZE, site=self._site)

    def begin(self, traced: Traced) -> CallList:
        """An empty list for a process that has this memory."""
        return CallList(traced, self._address)


class CallList:
    """System calls that a stopped process makes one after another.

    Args:
        traced: the process.
        address: of the memory for lists.
    """

    def __init__(self, traced: Traced, address: int) -> None:
        self._traced, self._address = traced, address
        self._calls: list[tuple[str, bool, bytes]] = []
        self._data = bytearray()

    @property
    def is_full(self) -> bool:
        """Tell whether there may be no room for the calls and paths of another file."""
        return len(self._calls) > _MOST_CALLS - 8 or len(self._data) > _SIZE - _DATA_AT - 8192

    def data(self, data: bytes) -> int:
        """Put data into the process's memory; returns the address."""
        address = self.data_address + len(self._data)
        self._data += data + bytes(-len(data) % 16)
        return address

    @property
    def data_address(self) -> int:
        return self._address + _DATA_AT

    def add(self, name: str, *arguments: int, may_fail: bool = False) -> int:
        """Add a call; returns its place among the results."""
        words = [CALLS[name], *(each & _MASK for each in arguments)]
        packed = _ENTRY.pack(*words, *[0] * (8 - len(words)))
        self._calls.append((name, may_fail, packed))
        return len(self._calls) - 1

    def run(self) -> list[int]:
        """Have the process make the calls; returns the results.

        The result of a call with `may_fail` is negative if it failed.

        Raises:
            CallError: a call without `may_fail` failed; those after it were made nevertheless.
        """
        traced, place = self._traced, self._address + _LIST_AT
        end = _ENTRY.pack(_MASK, *[0] * 7)
        if self._data:
            traced.poke(self.data_address, bytes(self._data))
        traced.poke(place, b"".join(packed for _, _, packed in self._calls) + end)
        traced.run_to_trap(self._address, place)
        raw = traced.read(place, _ENTRY.size * len(self._calls))
        results: list[int] = []
        for (name, may_fail, _), entry in zip(self._calls, _ENTRY.iter_unpack(raw), strict=True):
            try:
                results.append(checked(name, entry[7]))
            except CallError as error:
                if not may_fail:
                    raise
                results.append(-(error.errno or 1))
        return results
