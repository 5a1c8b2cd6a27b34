"""Instructions of classic BPF, and what all filters begin with. Pure."""

from __future__ import annotations

import struct
from collections.abc import Sequence

# bpf(4) and linux/bpf_common.h: all values are 32 bits.
LOAD, JUMP, RETURN, AND = 0x20, 0x05, 0x06, 0x54
EQUAL, AT_LEAST, ANY_BIT = 0x15, 0x35, 0x45

# linux/seccomp.h: verdicts, and where a call's data lies.
ALLOW, TRACE, ERRNO, KILL_PROCESS = 0x7FFF0000, 0x7FF00000, 0x00050000, 0x80000000
NUMBER, ARCHITECTURE, ARGUMENTS = 0, 4, 16

ARCHITECTURES = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
"""AUDIT_ARCH_ of linux/audit.h, by `platform.machine()`. Both are little-endian, so that the lower
half of an argument comes first.
"""


def line(code: int, value: int, *, yes: int = 0, no: int = 0) -> bytes:
    """A `struct sock_filter`; `yes` and `no` are the instructions that a comparison skips."""
    return struct.pack("<HBBI", code, yes, no, value)


def load_argument(index: int, *, upper: bool = False) -> bytes:
    """Load the lower or the upper half of an argument.

    Most arguments are an int to the kernel, which then ignores the upper half, as we must.
    """
    return line(LOAD, ARGUMENTS + 8 * index + 4 * upper)


def result(verdict: int) -> bytes:
    return line(RETURN, verdict)


NOTHING = 0
"""The error of a call that does nothing and says that it has succeeded."""


def refuse(error: int) -> bytes:
    return result(ERRNO | error)


def run_if(comparison: int, value: int, *block: bytes) -> bytes:
    """Run `block` if what was loaded last compares so."""
    body = b"".join(block)
    return line(comparison, value, no=len(body) // 8) + body


def run_if_one_of(values: Sequence[int], *block: bytes) -> bytes:
    body = b"".join(block)
    tests = [line(EQUAL, value, yes=len(values) - place) for place, value in enumerate(values)]
    return b"".join([*tests, line(JUMP, len(body) // 8), body])


def run_unless_one_of(values: Sequence[int], *block: bytes) -> bytes:
    body = b"".join(block)
    over = len(body) // 8
    tests = [
        line(EQUAL, value, yes=len(values) - 1 - place + over) for place, value in enumerate(values)
    ]
    return b"".join([*tests, body])


def only_of(machine: str) -> bytes:
    """End a process that comes by another architecture's entry, whose numbers mean other calls
    (int 0x80 on x86_64, 32-bit ARM); else load the number of the call.
    """
    own = run_unless_one_of([ARCHITECTURES[machine]], result(KILL_PROCESS))
    return line(LOAD, ARCHITECTURE) + own + line(LOAD, NUMBER)
