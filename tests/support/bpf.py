"""An interpreter of classic BPF as seccomp runs it, after Linux' `net/core/filter.c`.

It refuses programs that the kernel would refuse: jumps past the end, unknown instructions, an end
without a verdict.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

MAX_LENGTH = 4096
"""BPF_MAXINSNS"""

ALLOW = 0x7FFF0000
TRACE = 0x7FF00000
KILL_PROCESS = 0x80000000
ERRNO = 0x00050000


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """A system call as a filter sees it: `struct seccomp_data`."""

    number: int
    architecture: int
    arguments: Sequence[int] = ()

    def pack(self) -> bytes:
        """Pack the record as the kernel lays it out on little-endian machines."""
        values = [argument & (1 << 64) - 1 for argument in self.arguments]
        values += [0] * (6 - len(values))
        return struct.pack("<IIQ6Q", self.number & 0xFFFFFFFF, self.architecture, 0, *values)


@cache
def check(program: bytes) -> list[tuple[int, int, int, int]]:
    """The instructions of a program that the kernel would take: (code, yes, no, value).

    Raises:
        AssertionError: it would not.
    """
    assert len(program) % 8 == 0
    lines = list(struct.iter_unpack("<HBBI", program))
    assert 0 < len(lines) <= MAX_LENGTH
    for place, (code, yes, no, value) in enumerate(lines):
        rest = len(lines) - place - 1
        match code:
            case 0x20:
                assert value % 4 == 0
                assert value < 64
            case 0x05:
                assert value < rest
            case 0x15 | 0x35 | 0x45:
                assert max(yes, no) < rest
            case 0x54 | 0x06:
                pass
            case _:
                raise AssertionError(f"instruction {place} has code {code:#x}")
    assert lines[-1][0] == 0x06
    return lines


def run(program: bytes, call: Call) -> int:
    """The verdict of a program on a call."""
    lines = check(program)
    data = call.pack()
    place = accumulator = 0
    while True:
        code, yes, no, value = lines[place]
        place += 1
        match code:
            case 0x20:
                (accumulator,) = struct.unpack_from("<I", data, value)
            case 0x54:
                accumulator &= value
            case 0x05:
                place += value
            case 0x15:
                place += yes if accumulator == value else no
            case 0x35:
                place += yes if accumulator >= value else no
            case 0x45:
                place += yes if accumulator & value else no
            case _:
                return value
