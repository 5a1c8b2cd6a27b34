"""System calls that a stopped process makes for its tracer (x86-64)."""

from __future__ import annotations

import ctypes
import os
import signal
import struct
from contextlib import suppress
from typing import NamedTuple

from sandbox.template.kernel import libc

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping


libc.ptrace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]
libc.ptrace.restype = ctypes.c_long

# linux/ptrace.h
_CONT, _INTERRUPT = 7, 0x4207
_GETREGS, _SETREGS, _DETACH, _SYSCALL = 12, 13, 17, 24
_SETOPTIONS, _GETEVENTMSG, _SEIZE = 0x4200, 0x4201, 0x4206
_GET_RSEQ, _RSEQ = 0x420F, struct.Struct("QIIII")
SYSGOOD, TRACEFORK, TRACEVFORK, TRACECLONE, TRACESECCOMP = 0x1, 0x2, 0x4, 0x8, 0x80
EXITKILL = 0x100000
_EVENT_SECCOMP = 7
_FORKED = (1, 2, 3)  # PTRACE_EVENT_FORK, _VFORK, _CLONE
_SYSCALL_STOP = signal.SIGTRAP | 0x80
WALL = 0x40000000

_NAMES = (
    "r15 r14 r13 r12 rbp rbx r11 r10 r9 r8 rax rcx rdx rsi rdi orig_rax rip cs eflags rsp ss "
    "fs_base gs_base ds es fs gs"
).split()
_REGISTERS = struct.Struct(f"{len(_NAMES)}Q")
_ARGUMENTS = ("rdi", "rsi", "rdx", "r10", "r8", "r9")
_MASK = (1 << 64) - 1
NO_CALL = _MASK
"""`orig_rax` of a process that is in no system call, so that the kernel restarts none."""

# asm/unistd_64.h
CALLS: Mapping[str, int] = {
    "close": 3,
    "lseek": 8,
    "mmap": 9,
    "munmap": 11,
    "sendfile": 40,
    "recvmsg": 47,
    "socketpair": 53,
    "clone": 56,
    "chdir": 80,
    "setsid": 112,
    "capset": 126,
    "prctl": 157,
    "set_tid_address": 218,
    "openat": 257,
    "dup3": 292,
    "setns": 308,
    "memfd_create": 319,
    "rseq": 334,
    "close_range": 436,
    "landlock_create_ruleset": 444,
    "landlock_restrict_self": 446,
}

CLONE_VM, CLONE_VFORK = 0x100, 0x4000
CLONE_SHARED = CLONE_VM | 0x200 | 0x400 | 0x800 | 0x8000 | 0x10000
"""CLONE_VM, _FS, _FILES, _SIGHAND, _PARENT and _THREAD: what a fork does not share."""

BORROWED = 256
"""Distance below the stack pointer, beyond the red zone, of memory that is borrowed."""


class TracedEndedError(Exception):
    """A traced process has ended, or did what it should not."""


class CallError(OSError):
    """A system call failed in a traced process."""


Registers = dict[str, int]


def _ptrace(request: int, pid: int, address: int = 0, data: int = 0) -> None:
    if libc.ptrace(request, pid, address, data) < 0:
        error = ctypes.get_errno()
        raise OSError(error, f"ptrace {request:#x}: {os.strerror(error)}")


class Traced:
    """A process that this one traces."""

    def __init__(self, pid: int) -> None:
        assert pid > 1, "for kill(2), 0 and -1 are groups of processes"
        self.pid = pid
        self._memory = -1
        self._signals: list[int] = []
        self.attached = True

    @classmethod
    def seize(cls, pid: int) -> Traced:
        """Begin to trace a process, without stopping it, and to stop what it forks.

        It goes on if this process ends.
        """
        _ptrace(_SEIZE, pid, 0, SYSGOOD | TRACEFORK)
        return cls(pid)

    def hold(self) -> None:
        """Have it end with this process, and stop at `setns` and whenever it makes a process."""
        options = SYSGOOD | TRACEFORK | TRACEVFORK | TRACECLONE | TRACESECCOMP | EXITKILL
        _ptrace(_SETOPTIONS, self.pid, 0, options)

    def wait(self) -> int:
        """Wait until it stops; returns what for: the signal, and an event above it."""
        _, status = os.waitpid(self.pid, WALL)
        return self.stopped(status)

    def stopped(self, status: int) -> int:
        if not os.WIFSTOPPED(status):
            self.attached = False
            raise TracedEndedError(f"process {self.pid} ended while it was forked")
        return status >> 8

    def go_on(self, number: int = 0) -> None:
        """Let it run to its next system call, or to its end."""
        _ptrace(_SYSCALL, self.pid, 0, number)

    def resume(self, stop: int) -> None:
        """Let it run after a stop that is of no interest, with its signal if there was one."""
        number = stop & 0x7F
        of_its_own = stop >> 8 == 0 and number != signal.SIGTRAP
        _ptrace(_CONT, self.pid, 0, number if of_its_own else 0)

    def interrupt(self) -> None:
        """Stop it, if it runs."""
        _ptrace(_INTERRUPT, self.pid)
        stop = self.wait()
        if stop >> 8 == 0 and stop != signal.SIGTRAP:
            self._signals.append(stop)

    def let_go(self) -> None:
        """Let it run, untraced, whatever it does now."""
        try:
            self.detach()
        except OSError:  # it runs: only a stopped process can be detached
            with suppress(OSError, TracedEndedError):
                self.attached = True
                self.interrupt()
                self.detach()

    def finish_next_call(self) -> int:
        """Run to the end of the system call that it makes next; returns the result."""
        self.finish_call()
        self.finish_call()
        return self.registers["rax"]

    def fork_at_once(self) -> Traced:
        """Run to the end of the `clone` that it is about to make; returns the child, stopped."""
        self.finish_call()
        child = self._made()
        self.finish_call()
        return child

    def _made(self) -> Traced:
        self.go_on()
        while (stop := self.wait()) >> 8 == 0 and stop not in {signal.SIGTRAP, _SYSCALL_STOP}:
            self._signals.append(stop)
            self.go_on()
        if stop >> 8 not in _FORKED:
            checked("clone", self.registers["rax"])
            raise TracedEndedError("clone made no process")
        return self.child()

    def child(self) -> Traced:
        """The process that it has just made; waits until that one is stopped, too."""
        told = ctypes.c_ulong()
        _ptrace(_GETEVENTMSG, self.pid, 0, ctypes.addressof(told))
        child = Traced(told.value)
        child.wait()
        return child

    @property
    def registers(self) -> Registers:
        buffer = ctypes.create_string_buffer(_REGISTERS.size)
        _ptrace(_GETREGS, self.pid, 0, ctypes.addressof(buffer))
        return dict(zip(_NAMES, _REGISTERS.unpack(buffer.raw)))

    @registers.setter
    def registers(self, values: Registers) -> None:
        packed = _REGISTERS.pack(*(values[name] for name in _NAMES))
        buffer = ctypes.create_string_buffer(packed, len(packed))
        _ptrace(_SETREGS, self.pid, 0, ctypes.addressof(buffer))

    def read(self, address: int, size: int) -> bytes:
        return os.pread(self._open_memory(), size, address)

    def poke(self, address: int, data: bytes) -> None:
        os.pwrite(self._open_memory(), data, address)

    def _open_memory(self) -> int:
        if self._memory < 0:
            self._memory = os.open(f"/proc/{self.pid}/mem", os.O_RDWR | os.O_CLOEXEC)
        return self._memory

    def finish_call(self) -> None:
        """Run to the end of the system call that it is in, or to the beginning of the next one."""
        while True:
            self.go_on()
            stop = self.wait()
            if stop == _SYSCALL_STOP:
                return
            if stop >> 8 == 0 and stop != signal.SIGTRAP:
                self._signals.append(stop)  # a handler would run where no one expects it
            if stop >> 8 != _EVENT_SECCOMP and stop >> 8 in _FORKED:
                raise TracedEndedError("made a process where it should not")

    def call(self, name: str, *arguments: int, site: int) -> int:
        """Have it make a system call, by such an instruction at an address, and stop again as
        before."""
        before = self.registers
        self._begin(before, name, arguments, site)
        self.finish_call()
        self.finish_call()
        result = self.registers["rax"]
        self.registers = before
        return checked(name, result)

    def run_to_trap(self, code: int, data: int) -> list[Traced]:
        """Have it run instructions up to a breakpoint, and stop again as before.

        Return processes that it has made meanwhile; they are stopped.

        Args:
            code: address of the instructions.
            data: value of `rbx` when they begin.
        """
        before = self.registers
        self.registers = {**before, "rip": code, "rbx": data, "orig_rax": NO_CALL}
        made: list[Traced] = []
        while True:
            _ptrace(_CONT, self.pid)
            stop = self.wait()
            if stop == signal.SIGTRAP:
                break
            if stop >> 8 == 0:
                self._signals.append(stop)
            if stop >> 8 in _FORKED:
                made.append(self.child())
        self.registers = before
        return made

    def clone_at_last(self, arguments: tuple[int, ...], site: int) -> Traced:
        """Have it make a process; returns that, stopped. This one can only be killed then."""
        before = self.registers
        self._begin(before, "clone", arguments, site)
        self.finish_call()
        return self._made()

    def rseq(self) -> tuple[int, int, int]:
        """Address, size and signature of its area for restartable sequences; 0 without."""
        buffer = ctypes.create_string_buffer(_RSEQ.size)
        _ptrace(_GET_RSEQ, self.pid, _RSEQ.size, ctypes.addressof(buffer))
        address, size, signature, _, _ = _RSEQ.unpack(buffer.raw)
        return address, size, signature

    def _begin(self, before: Registers, name: str, arguments: tuple[int, ...], site: int) -> None:
        changed = {**before, "rip": site, "rax": CALLS[name], "orig_rax": NO_CALL}
        for register, value in zip(_ARGUMENTS, arguments):
            changed[register] = value & _MASK
        self.registers = changed

    def call_in_place(self, data: bytes, calls: list[tuple[str, tuple[int, ...]]]) -> None:
        """Have it make system calls just before the one that it makes next.

        Args:
            data: is in its memory meanwhile; `DATA` among the arguments stands for the address.
            calls: names and arguments; `RESULT` stands for the first result that is not zero. After
                one has failed, only `close` is called, so that no descriptor stays open.

        If this process ends meanwhile, the other one goes on, at worst with another result of that
        call.
        """
        self.finish_call()
        entry = self.registers
        address = (entry["rsp"] - BORROWED) & ~15
        before = self.read(address, len(data))
        self.poke(address, data)
        known = {DATA: address, RESULT: 0}
        failure: CallError | None = None
        try:
            for name, arguments in calls:
                if failure is not None and not (name == "close" and known[RESULT]):
                    continue
                changed = {**entry, "orig_rax": CALLS[name]}
                for register, value in zip(_ARGUMENTS, arguments):
                    changed[register] = known.get(value, value) & _MASK
                self.registers = changed
                self.finish_call()
                made = self.registers["rax"]
                again = {**entry, "rip": entry["rip"] - 2, "rax": entry["orig_rax"]}
                self.registers = {**again, "orig_rax": NO_CALL}
                self.finish_call()
                try:
                    result = checked(name, made)
                    known[RESULT] = known[RESULT] or result
                except CallError as error:
                    failure = failure or error
        finally:
            with suppress(OSError):
                self.poke(address, before)
                self.registers = entry
        if failure is not None:
            raise failure

    def detach(self) -> None:
        """Let it run, untraced."""
        if self.attached:
            # Before: its number may be another process's as soon as nobody traces it.
            while self._signals:
                with suppress(ProcessLookupError):
                    os.kill(self.pid, self._signals.pop(0))
            _ptrace(_DETACH, self.pid)
            self.attached = False

    def kill(self) -> None:
        """End it while it is traced, and reap it if it is ours."""
        if not self.attached:  # its number may be another process's by now
            self.close()
            return
        with suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)
        with suppress(ChildProcessError):
            while not (
                os.WIFSIGNALED(status := os.waitpid(self.pid, WALL)[1]) or os.WIFEXITED(status)
            ):
                pass
        self.attached = False
        self.close()

    def close(self) -> None:
        if self._memory >= 0:
            os.close(self._memory)
            self._memory = -1


RESULT, DATA = -(1 << 62), -(1 << 62) - 1
"""Arguments that `Traced.call_in_place` puts in."""


def checked(name: str, result: int) -> int:
    """The result of a system call."""
    if result > _MASK - 4096:
        error = _MASK + 1 - result
        raise CallError(error, f"{name}: {os.strerror(error)}")
    return result


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
    """Memory of a stopped process, and of what is forked from it, for lists of system calls that it
    makes with one stop; a stop for each takes longer.

    The tracer maps a few instructions into the process. They read a list that the tracer has
    written, and write each result beside its call. Nothing else runs there meanwhile, as the
    process has one thread and memory of its own. Raise CallError if the kernel gives it no memory.

    Args:
        site: address of a system call instruction in it.
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
    """System calls that a stopped process makes one after another; `made` are processes that they
    have made, stopped."""

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

        The result of a call with `may_fail` is negative if it failed. Raise CallError if a call
        without `may_fail` failed; those after it were made nevertheless.
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
