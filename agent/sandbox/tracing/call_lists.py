"""Lists of system calls that a stopped process makes with one stop; a stop for each takes longer.

The tracer maps a few instructions into the process. They read a list that the tracer has written,
and write each result beside its call. Nothing else runs there meanwhile, as the process has one
thread and memory of its own.
"""

from __future__ import annotations

import signal
import struct
from typing import NamedTuple

from sandbox.tracing.ptrace import CALLS, CLONE_VM, CallError, Traced, checked

_CODE = bytes.fromhex(
    "488b03"  # next: mov rax, [rbx]
    "4883f8ff"  # cmp rax, -1
    "743a"  # je end
    "4883f8fe"  # cmp rax, -2
    "7424"  # je copy
    "488b7b08"  # mov rdi, [rbx + 8]
    "488b7310"  # mov rsi, [rbx + 16]
    "488b5318"  # mov rdx, [rbx + 24]
    "4c8b5320"  # mov r10, [rbx + 32]
    "4c8b4328"  # mov r8, [rbx + 40]
    "4c8b4b30"  # mov r9, [rbx + 48]
    "0f05"  # syscall
    "48894338"  # mov [rbx + 56], rax
    "4883c340"  # step: add rbx, 64
    "ebcd"  # jmp next
    "488b4b08"  # copy: mov rcx, [rbx + 8]
    "488b09"  # mov rcx, [rcx]
    "488b5310"  # mov rdx, [rbx + 16]
    "48890a"  # mov [rdx], rcx
    "ebea"  # jmp step
    "cc"  # end: int3
)

_ENTRY = struct.Struct("8Q")
_ALL_BITS = (1 << 64) - 1
_COPY = _ALL_BITS - 1
"""Stands for a call: eight bytes are copied from one address to another."""

_LIST_AT, _DATA_AT, _SIZE = 4096, 64 * 1024, 192 * 1024
_MOST_CALLS = (_DATA_AT - _LIST_AT) // _ENTRY.size - 1

_ALL_RIGHTS, _PRIVATE_ANONYMOUS = 7, 0x22


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
            "mmap", 0, _SIZE, _ALL_RIGHTS, _PRIVATE_ANONYMOUS, nothing, 0, site=site
        )
        traced.poke(self._address, _CODE)

    def clone(self, traced: Traced) -> Traced:
        """Have a process with this memory make another one, which shares all of it."""
        calls = self.begin(traced)
        calls.add("clone", CLONE_VM | signal.SIGCHLD, 0, 0, 0, 0)
        calls.run()
        (made,) = calls.made
        return made

    def unmap(self, traced: Traced) -> None:
        traced.call("munmap", self._address, _SIZE, site=self._site)

    def begin(self, traced: Traced) -> CallList:
        """An empty list for a process that has this memory."""
        return CallList(traced, self._address)


class ResultOf(NamedTuple):
    """The result of an earlier call of the same list, as an argument."""

    place: int


class StoredAt(NamedTuple):
    """A number that an earlier call of the same list has written to memory, as an argument."""

    address: int


class CallList:
    """System calls that a stopped process makes one after another.

    Args:
        traced: the process.
        address: of the memory for lists.

    Attributes:
        made: processes that the calls have made, stopped.
    """

    def __init__(self, traced: Traced, address: int) -> None:
        self._traced, self._address = traced, address
        self._calls: list[tuple[str, bool, bytes]] = []
        self._data = bytearray()
        self.made: list[Traced] = []

    @property
    def is_full(self) -> bool:
        """Tell whether there may be no room for the calls and paths of another file."""
        return len(self._calls) > _MOST_CALLS - 64 or len(self._data) > _SIZE - _DATA_AT - 8192

    def data(self, data: bytes) -> int:
        """Put data into the process's memory; returns the address."""
        address = self._address + _DATA_AT + len(self._data)
        self._data += data + bytes(-len(data) % 16)
        return address

    def add(self, name: str, *arguments: int | ResultOf | StoredAt, may_fail: bool = False) -> int:
        """Add a call; returns its place among the results."""
        copied = [each for each in arguments if isinstance(each, tuple)]
        place = len(self._calls) + len(copied)
        words = [CALLS[name]]
        for number, each in enumerate(arguments, 1):
            if isinstance(each, int):
                words.append(each & _ALL_BITS)
                continue
            words.append(0)
            source = self._entry(each.place) + 56 if isinstance(each, ResultOf) else each.address
            packed = _ENTRY.pack(_COPY, source, self._entry(place) + 8 * number, *[0] * 5)
            self._calls.append(("copy", True, packed))
        self._calls.append((name, may_fail, _ENTRY.pack(*words, *[0] * (8 - len(words)))))
        return place

    def _entry(self, place: int) -> int:
        return self._address + _LIST_AT + place * _ENTRY.size

    def run(self) -> list[int]:
        """Have the process make the calls; returns the results.

        The result of a call with `may_fail` is negative if it failed.

        Raises:
            CallError: a call without `may_fail` failed; those after it were made nevertheless.
        """
        traced = self._traced
        end = _ENTRY.pack(_ALL_BITS, *[0] * 7)
        if self._data:
            traced.poke(self._address + _DATA_AT, bytes(self._data))
        traced.poke(self._entry(0), b"".join(packed for _, _, packed in self._calls) + end)
        self.made = traced.run_to_trap(self._address, self._entry(0))
        raw = traced.read(self._entry(0), _ENTRY.size * len(self._calls))
        results: list[int] = []
        for (name, may_fail, _), entry in zip(self._calls, _ENTRY.iter_unpack(raw)):
            try:
                results.append(checked(name, entry[7]))
            except CallError as error:
                if not may_fail:
                    raise
                results.append(-(error.errno or 1))
        return results
