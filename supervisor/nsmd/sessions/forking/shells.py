"""A Bash that waits for commands, and forks where it waits (x86-64).

A shell has no code of its own that forks without going on with the next command. So the tracer
writes a few instructions into unused memory of the shell, and has it run them in place of the
`read` in which it waits. They fork, enter a Landlock domain, and go on with the `read`. If the
tracer is killed meanwhile, the shell runs them to the end by itself, and its child ends.
"""

from __future__ import annotations

import os
import signal
import struct
import time
from collections.abc import Mapping
from contextlib import suppress

from sandbox.carrying.looking import CannotForkError, proc_text
from sandbox.carrying.ptrace import (
    CALLS,
    NO_CALL,
    Registers,
    Traced,
    TracedEndedError,
    checked,
)
from sandbox.linux import LANDLOCK_SCOPE_SIGNAL, landlock_attributes

WAIT_S = 2.0
"""Time for a shell to wait for commands, after its last execution."""

_PAUSE_S = 0.001
_PROGRAM_BYTES = 8 << 20
_DYNAMIC_SYMBOLS = 11
_ROOM = 384
_READ, _EXIT_GROUP = 0, 231
_RESTARTED = (1 << 64) - 512
"""`rax` of a process that was stopped in a system call that is made again (ERESTARTSYS)."""

_KEPT = {"rdi": "48bf", "rsi": "48be", "rdx": "48ba", "r10": "49ba", "r8": "49b8", "r9": "49b9"}
"""Registers with arguments of the `read`, and the instructions that set them."""

_BEGIN = bytes.fromhex("0f05 4885c0")  # syscall; test rax, rax


class WaitingShell:
    """A shell that waits for commands; it is stopped.

    Args:
        pid: host process id.

    Attributes:
        traced: the process.

    Raises:
        CannotForkError: it does not wait, or has no memory for the instructions.
        OSError: it cannot be traced.
    """

    def __init__(self, pid: int) -> None:
        self.traced = Traced.seize(pid)
        try:
            waits = self._stop()
            self._site = _room_in(self.traced)
            self._program, self._rest = _program(self._site, waits)
            self.traced.poke(self._site, self._program)
        except BaseException:
            self.traced.let_go()
            raise
        self._waits = waits

    def _stop(self) -> Registers:
        """Stop it in its `read`; returns the registers."""
        traced, limit = self.traced, time.monotonic() + WAIT_S
        while True:
            if proc_text(f"/proc/{traced.pid}/syscall").startswith(f"{_READ} 0x0 "):
                traced.interrupt()
                found = traced.registers
                if found["orig_rax"] == _READ and found["rax"] == _RESTARTED and not found["rdi"]:
                    return found
                traced.resume(signal.SIGTRAP)
            if time.monotonic() > limit:
                raise CannotForkError("its shell does not wait for code")
            time.sleep(_PAUSE_S)

    def fork(self) -> Traced:
        """Have it fork; returns the child. Both are stopped then."""
        start = {"rip": self._site, "rax": CALLS["clone"], "orig_rax": NO_CALL}
        arguments = {"rdi": int(signal.SIGCHLD), "rsi": 0, "rdx": 0, "r10": 0, "r8": 0}
        self.traced.registers = {**self._waits, **start, **arguments}
        return self.traced.fork_at_once()

    def shut_in(self) -> None:
        """Have it enter a Landlock domain, so that it reaches no fork, and go on to its `read`.

        What else runs in the session is stopped by now; before, it may have changed the program.

        Raises:
            CallError: the kernel refuses.
            TracedEndedError: the shell is not what it was.
        """
        after = self.traced.registers["rip"]
        found = self.traced.read(self._site, len(self._program))
        if found != self._program or after != self._site + 2:
            raise TracedEndedError("the shell was changed while it was forked")
        for name in ("landlock_create_ruleset", "landlock_restrict_self", "close"):
            checked(name, self.traced.finish_next_call())
        self.traced.finish_call()  # the beginning of its `read`

    def skip(self) -> None:
        """Have it go on with its `read`, wherever it is, without entering a domain."""
        with suppress(OSError):
            self.traced.registers = self.resumed()

    def resumed(self) -> Registers:
        """The registers of the shell, or of a copy of it, when it goes on with its `read`."""
        return {**self._waits, "rip": self._rest, "rax": 0, "orig_rax": NO_CALL}


def _room_in(traced: Traced) -> int:
    """Address of unused memory with instructions: the rest of the last page of a program file."""
    for line in proc_text(f"/proc/{traced.pid}/maps").splitlines():
        span, rights, _, _, inode, *_ = line.split()
        if rights == "r-xp" and inode != "0":
            address = int(span.partition("-")[2], 16) - _ROOM
            found = traced.read(address, _ROOM)
            if not any(found) or found.startswith(_BEGIN):  # it was forked before
                return address
    raise CannotForkError("its shell has no room for the instructions that fork")


def _program(site: int, waits: Mapping[str, int]) -> tuple[bytes, int]:
    """The instructions, and the address of those with which the `read` is made again."""
    attributes = landlock_attributes(LANDLOCK_SCOPE_SIGNAL)
    data = site + _ROOM - 64  # the address to go on at, and the attributes
    enter = b"".join(
        (
            _move("48bf", data + 8),  # mov rdi, attributes
            b"\xbe" + struct.pack("<I", len(attributes)),  # mov esi, size
            bytes.fromhex("31d2"),  # xor edx, edx
            _call(CALLS["landlock_create_ruleset"]),
            bytes.fromhex("4189c0 89c7 31f6"),  # mov r8d, eax; mov edi, eax; xor esi, esi
            _call(CALLS["landlock_restrict_self"]),
            bytes.fromhex("4489c7"),  # mov edi, r8d
            _call(CALLS["close"]),
        )
    )
    rest = b"".join(_move(opcode, waits[name]) for name, opcode in _KEPT.items())
    rest += b"\xb8" + struct.pack("<I", _READ)  # mov eax, read
    end = bytes.fromhex("31ff") + _call(_EXIT_GROUP)  # of a child that nobody traces
    size = len(rest) + 6
    rest_at = site + len(_BEGIN) + 6 + len(enter)
    over = bytes.fromhex("0f84") + struct.pack("<i", len(enter) + size)  # jz end
    rest += bytes.fromhex("ff25") + struct.pack("<i", data - rest_at - size)  # jmp [data]
    program = (_BEGIN + over + enter + rest + end).ljust(_ROOM - 64, b"\0")
    return program + struct.pack("<Q", waits["rip"] - 2) + attributes, rest_at


def _call(number: int) -> bytes:
    return b"\xb8" + struct.pack("<I", number) + b"\x0f\x05"  # mov eax, number; syscall


def _move(opcode: str, value: int) -> bytes:
    return bytes.fromhex(opcode) + struct.pack("<Q", value)


def tell_its_pid(copy: Traced, before: int, after: int) -> None:
    """Change `$$`, which a shell reads once, at its start. Without it, it stays the original's.

    Args:
        copy: copy of a shell, which is stopped.
        before: process id of the original, as code sees it.
        after: that of the copy.
    """
    with suppress(OSError, ValueError, struct.error):
        with open(f"/proc/{copy.pid}/exe", "rb") as file:
            program = file.read(_PROGRAM_BYTES)
        path = os.readlink(f"/proc/{copy.pid}/exe")
        address = _address_of(program, b"dollar_dollar_pid")
        if address and program[16:18] == b"\x03\x00":  # ET_DYN: loaded anywhere
            address += next(
                int(line.partition("-")[0], 16)
                for line in proc_text(f"/proc/{copy.pid}/maps").splitlines()
                if line.split(None, 5)[2] == "00000000" and line.endswith(path)
            )
        if address and copy.read(address, 4) == struct.pack("<i", before):
            copy.poke(address, struct.pack("<i", after))


def _address_of(program: bytes, name: bytes) -> int:
    """Address of a dynamic symbol of a 64-bit ELF file; 0 without (elf(5))."""
    (table,) = struct.unpack_from("<Q", program, 40)
    size, count = struct.unpack_from("<HH", program, 58)
    sections = [
        struct.unpack_from("<IIQQQQII", program, table + number * size) for number in range(count)
    ]
    for _, kind, _, _, offset, length, linked, _ in sections:
        if kind == _DYNAMIC_SYMBOLS:
            names = sections[linked][4]
            for place in range(offset, offset + length, 24):
                at, _, _, _, value, _ = struct.unpack_from("<IBBHQQ", program, place)
                if program.startswith(name + b"\0", names + at):
                    return int(value)
    return 0
