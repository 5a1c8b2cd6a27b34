"""The worker of a fork: how a Bash makes it, and what it gets in place of the original's (x86-64).

A Bash has no code of its own that forks without going on with the next command. So the tracer
writes a few instructions into unused memory of the shell, and has it run them in place of the
`read` in which it waits. They fork, enter a Landlock domain, and go on with the `read`. If the
tracer is killed meanwhile, the shell runs them to the end by itself, and its child ends.
"""

from __future__ import annotations

import os
import signal
import struct
import time
from collections.abc import Container, Mapping, Sequence
from contextlib import suppress

from nsm.wire.tuples import NamedTuple
from nsmd.sessions.forking.traced_session import REMOVED, Descriptors, FileToOpen, UnnamedFile
from sandbox.linux import LANDLOCK_SCOPE_SIGNAL, landlock_attributes
from sandbox.tracing.fork_checks import CannotForkError, give_descriptors, proc_text, take_rights
from sandbox.tracing.ptrace import (
    CALLS,
    NO_CALL,
    CallList,
    CallLists,
    Registers,
    ResultOf,
    Traced,
    TracedEndedError,
    checked,
)

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
    """A shell that waits for commands; it is stopped."""

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
    """Change `$$`, which a shell reads once, at its start. Without it, it stays the original's."""
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


_AT_FDCWD = -100
_OPENING_ONCE = os.O_CREAT | os.O_EXCL | os.O_TRUNC

_MEMORY_FILE = "/memfd:"

_MOST_SENT = 0x7FFF_F000
"""Most bytes of one sendfile(2)."""


class WorkerSetup(NamedTuple):
    """Descriptors, files and rights that the worker of every fork gets in place of the original's.

    Attributes:
        lists: memory of the workers for lists of calls.
        last_capability: the highest number of one.
        page: address of the page that the worker shares with its agent; 0 in a shell.
        private: its control socket, and the descriptors that nsm puts back as 0, 1 and 2.
        code: of a shell, the descriptor of the file with code; -1 in others.
        descriptors: all others.
        rseq: address, size and signature of its area for restartable sequences.
    """

    lists: CallLists
    last_capability: int
    page: int
    private: Sequence[int]
    code: int
    descriptors: Descriptors
    cwd: str
    rseq: tuple[int, int, int]

    def equip(self, worker: Traced, theirs: Sequence[int]) -> None:
        """Give the fork's worker descriptors, page and working directory of its own, and take its
        privileges away."""
        out, err, control, page = theirs
        at, nothing, saved_out, saved_err = self.private
        moved = {out: (1, saved_out), err: (2, saved_err), control: (at,)}
        if self.code >= 0:
            moved = {
                out: (saved_out,),
                err: (saved_err,),
                control: (at,),
                page: (self.code,),
            }
        calls = self.lists.begin(worker)
        places = give_descriptors(calls, moved, (self.page, page), self.rseq)
        for path in ("/workspace", self.cwd):
            calls.add("chdir", calls.data(os.fsencode(path) + b"\0"), may_fail=True)
        # Not closed: what has them open would close the next file that gets the number.
        for fd in self.descriptors.closed:
            if fd not in places:
                if calls.is_full:
                    calls.run()
                    calls = self.lists.begin(worker)
                calls.add("dup3", nothing, fd, os.O_CLOEXEC)
        calls = self._reopen(worker, calls, theirs)
        calls = self._copy_unnamed(worker, calls, {*places, *theirs})
        self._disarm(calls)
        calls.run()

    def _reopen(self, worker: Traced, calls: CallList, theirs: Sequence[int]) -> CallList:
        """Open files of the original on the copy, at the same offsets; close those that fail."""
        asked: list[tuple[FileToOpen, int, int]] = []
        nothing = self.private[1]

        def settle() -> CallList:
            results = calls.run()
            following = self.lists.begin(worker)
            for file, opened, moved in asked:
                if results[opened] < 0:
                    self.descriptors.closed[file.fd] = file.path
                    following.add("dup3", nothing, file.fd, os.O_CLOEXEC)
                elif results[moved] < 0:
                    raise CannotForkError(f"{file.path} cannot be opened again")
            asked.clear()
            return following

        for file in self.descriptors.files:
            if file.fd in theirs:
                continue
            if calls.is_full:
                calls = settle()
            path = calls.data(os.fsencode(file.path) + b"\0")
            flags = file.flags & ~_OPENING_ONCE
            opened = calls.add("openat", _AT_FDCWD, path, flags, 0, may_fail=True)
            fresh = ResultOf(opened)
            if file.offset:
                calls.add("lseek", fresh, file.offset, os.SEEK_SET, may_fail=True)
            moved = calls.add("dup3", fresh, file.fd, file.flags & os.O_CLOEXEC, may_fail=True)
            calls.add("close", fresh, may_fail=True)
            asked.append((file, opened, moved))
        return settle() if asked else calls

    def _copy_unnamed(self, worker: Traced, calls: CallList, taken: Container[int]) -> CallList:
        """Copy files without a name, so that the fork has its own; close those that fail."""
        copies: dict[tuple[int, int], int] = {}
        for file in self.descriptors.unnamed:
            if file.fd in taken:
                continue
            calls.run()
            calls = self.lists.begin(worker)
            has_copy = file.inode in copies
            needed = [] if has_copy else self._copy(calls, file)
            # Opened again, with the flags that it had; its name is a link.
            name = calls.data(b"/proc/self/fd/%d\0" % copies.setdefault(file.inode, file.fd))
            flags = file.flags & ~(_OPENING_ONCE | os.O_TMPFILE | os.O_NOFOLLOW)
            opened = calls.add("openat", _AT_FDCWD, name, flags, 0, may_fail=True)
            fresh = ResultOf(opened)
            calls.add("lseek", fresh, file.offset, os.SEEK_SET, may_fail=True)
            moved = calls.add("dup3", fresh, file.fd, file.flags & os.O_CLOEXEC, may_fail=True)
            calls.add("close", fresh, may_fail=True)
            results = calls.run()
            calls = self.lists.begin(worker)
            copied = sum(results[place] for place in needed)
            if min(results[opened], results[moved]) < 0 or (not has_copy and copied != file.size):
                self.descriptors.closed[file.fd] = f"{file.path}{REMOVED}"
                calls.add("dup3", self.private[1], file.fd, os.O_CLOEXEC)
        return calls

    @staticmethod
    def _copy(calls: CallList, file: UnnamedFile) -> list[int]:
        """Put a copy of a file without a name in its place; returns the calls that copy."""
        source = calls.data(b"/proc/self/fd/%d\0" % file.fd)
        flags = os.O_RDONLY | os.O_CLOEXEC
        old = ResultOf(calls.add("openat", _AT_FDCWD, source, flags, 0, may_fail=True))
        if file.path.startswith(_MEMORY_FILE):
            name = calls.data(os.fsencode(file.path.removeprefix(_MEMORY_FILE)) + b"\0")
            flags = os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING
            new = ResultOf(calls.add("memfd_create", name, flags, may_fail=True))
        else:
            place = calls.data(os.fsencode(os.path.dirname(file.path)) + b"\0")
            flags = os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC
            new = ResultOf(calls.add("openat", _AT_FDCWD, place, flags, 0o600, may_fail=True))
        copying = [
            calls.add("sendfile", new, old, 0, min(_MOST_SENT, file.size - begin), may_fail=True)
            for begin in range(0, file.size, _MOST_SENT)
        ]
        calls.add("close", old, may_fail=True)
        calls.add("dup3", new, file.fd, os.O_CLOEXEC, may_fail=True)
        calls.add("close", new, may_fail=True)
        return copying

    def _disarm(self, calls: CallList) -> None:
        """Take its privileges away, and have it enter a Landlock domain, as the original did."""
        attributes = landlock_attributes(LANDLOCK_SCOPE_SIGNAL)
        address = calls.data(attributes)
        ruleset = ResultOf(calls.add("landlock_create_ruleset", address, len(attributes), 0))
        calls.add("landlock_restrict_self", ruleset, 0)
        calls.add("close", ruleset)
        take_rights(calls, self.last_capability)
