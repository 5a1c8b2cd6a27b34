"""A process that is to be forked: what of it no fork may share, as /proc shows it.

Also the namespaces and descriptors that a fork is given while it is stopped.
"""

from __future__ import annotations

import os
import re
import signal
import socket
import struct

from sandbox.linux import gpu_of
from sandbox.template.kernel import (
    CAPABILITY_VERSION_3,
    PR_CAP_AMBIENT,
    PR_CAP_AMBIENT_CLEAR_ALL,
    PR_CAPBSET_DROP,
    libc,
)
from sandbox.tracing.ptrace import CLONE_SHARED, CLONE_VM, CallList, CallLists, StoredAt, Traced

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


PAGE = "/memfd:shared (deleted)"
"""Name in maps of the page that a worker shares with its agent."""

_SESSIONS_OWN = ("/workspace", "/tmp", "/dev/shm")  # noqa: S108
"""Directories of files of a session's own."""

_MAPPING = re.compile(r"([0-9a-f]+)-([0-9a-f]+) (\S{4}) \S+ \S+ (\d+)\s*(.*)")


class CannotForkError(Exception):
    """A session cannot be forked; the message says why, for people."""


def proc_text(path: str) -> str:
    """Text of a file of /proc."""
    with open(path, encoding="utf-8", errors="surrogateescape") as file:
        return file.read()


def status_of(pid: int) -> dict[str, str]:
    """Fields of /proc/PID/status."""
    pairs = (line.partition(":") for line in proc_text(f"/proc/{pid}/status").splitlines())
    return {name: value.strip() for name, _, value in pairs}


def inner_pid(status: Mapping[str, str]) -> int:
    """Process id in the process's own namespace, of the fields that `status_of` returned."""
    return int(status["NSpid"].split()[-1])


def check_gpu(pid: int) -> None:
    """Refuse a process that uses a GPU: the driver's state is of this process alone. Raise
    CannotForkError if it uses one."""
    if gpu := gpu_of(pid):
        raise CannotForkError(f"it uses a GPU ({gpu}), whose state no fork can have")


def check_threads(pid: int) -> None:
    """Refuse a process with threads: a fork would not have them. Raise CannotForkError if it has
    threads."""
    tasks = os.listdir(f"/proc/{pid}/task")
    if len(tasks) > 1:
        names = sorted({proc_text(f"/proc/{pid}/task/{task}/comm").strip() for task in tasks})
        raise CannotForkError(
            f"it runs {len(tasks) - 1} threads beside its main one ({', '.join(names)[:200]}), "
            "which a fork would not have"
        )


def filters_of(pid: int) -> int:
    """Number of filters of system calls that a process has. Raise CannotForkError if the kernel
    does not tell."""
    found = status_of(pid).get("Seccomp_filters")
    if found is None:
        raise CannotForkError(
            "this kernel does not tell how many system call filters a process has, which takes "
            "Linux 5.9"
        )
    return int(found)


def check_filters(pid: int, usual: int) -> None:
    """Refuse a process with a filter of its own: that could pretend that calls were made. Raise
    CannotForkError if it has another number of filters."""
    if filters_of(pid) != usual:
        raise CannotForkError("code has installed a filter of system calls in it")


def page_of(pid: int, inode: int = 0) -> int:
    """Address of the page that it shares with its agent, which nothing else may share.

    Raise CannotForkError if it has no such page, or shares memory that a fork would share as well.
    """
    page = check_memory(pid, inode)
    if not page:
        raise CannotForkError("it has closed the memory that belongs to nsm")
    return page


def check_memory(pid: int, page_inode: int = 0) -> int:
    """Refuse a process with memory that a fork would share. Return the address of the page that it
    shares with its agent; 0 without.

    Raise CannotForkError if it shares other memory, or the page has another inode than the given
    one, if that is not 0.
    """
    page = 0
    for line in proc_text(f"/proc/{pid}/maps").splitlines():
        if (found := _MAPPING.fullmatch(line)) is None:
            raise CannotForkError(f"its memory cannot be read: {line[:200]}")
        start, _, rights, inode, path = found.groups()
        if path == PAGE and not page and inode == str(page_inode or inode):
            page = int(start, 16)
        elif rights[3] == "s" and (rights[1] == "w" or _is_sessions_own(path)):
            raise CannotForkError(
                f"it shares memory ({path or 'anonymous'}), which its fork would share with it"
            )
        elif inode != "0" and _is_sessions_own(path):
            raise CannotForkError(
                f"it has {path} in its memory: what it writes to that file, its fork would see"
            )
    return page


def _is_sessions_own(path: str) -> bool:
    plain = path.removesuffix(" (deleted)")
    is_below = any(plain == place or plain.startswith(f"{place}/") for place in _SESSIONS_OWN)
    return is_below or plain.startswith(("/memfd:", "/SYSV"))


KINDS = ("mnt", "ipc", "uts", "net", "cgroup", "pid")
"""Namespaces of a session besides that of its user, in the order in which they are entered."""

_CAPABILITIES = ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb")
_PIDFD_GETFD = 438


def enter_namespaces(
    lists: CallLists, traced: Traced, namespaces: Sequence[int], theirs: Sequence[int]
) -> tuple[Traced, list[int]]:
    """Have a stopped process enter namespaces, and make another one there.

    It gets the descriptors, and further ones that it is to have, over a pair of sockets that it
    makes. Return the other process, which shares its memory, and its numbers of the further ones.
    """
    descriptors = [*namespaces, *theirs]
    calls = lists.begin(traced)
    pair = calls.data(bytes(8))
    calls.add("socketpair", socket.AF_UNIX, socket.SOCK_STREAM, 0, pair)
    calls.run()
    ends = struct.unpack("2i", traced.read(pair, 8))
    pidfd = os.pidfd_open(traced.pid)
    with socket.socket(fileno=_taken(pidfd, ends[0])) as ours:
        os.close(pidfd)
        socket.send_fds(ours, [b"x"], descriptors)
    calls = lists.begin(traced)
    room = socket.CMSG_SPACE(4 * len(descriptors))
    # struct iovec, struct msghdr, the byte, the control message
    control, byte = calls.data(bytes(room)), calls.data(bytes(1))
    vector = calls.data(struct.pack("QQ", byte, 1))
    header = calls.data(struct.pack("QIIQQQQII", 0, 0, 0, vector, 1, control, room, 0, 0))
    calls.add("recvmsg", ends[1], header, 0)
    for end in ends:
        calls.add("close", end)
    numbers = control + socket.CMSG_LEN(0)
    for place in range(len(namespaces)):
        # The next number is in the upper half of these eight bytes, which the kernel ignores.
        fd = StoredAt(numbers + 4 * place)
        calls.add("setns", fd, 0)
        calls.add("close", fd)
    # At its end it would write there that a thread has ended, into the memory of the worker.
    calls.add("set_tid_address", 0)
    calls.add("clone", CLONE_VM | signal.SIGCHLD, 0, 0, 0, 0)
    calls.run()
    (made,) = calls.made
    raw = traced.read(numbers, 4 * len(descriptors))
    return made, list(struct.unpack(f"{len(descriptors)}i", raw))[len(namespaces) :]


def _taken(pidfd: int, fd: int) -> int:
    """A duplicate of another process's descriptor."""
    taken: int = libc.syscall(_PIDFD_GETFD, pidfd, fd, 0)
    if taken < 0:
        raise OSError("a descriptor of the fork cannot be taken")
    return taken


def missing_isolation(pid: int, namespaces: Sequence[int]) -> list[str]:
    """Name what /proc shows a process to lack before it may run code: empty if nothing. Namespaces
    that it has to be in: `KINDS`, and its user's."""
    status = status_of(pid)
    missing = [name for name in _CAPABILITIES if int(status[name], 16)]
    wanted = (("Seccomp", "2"), ("NoNewPrivs", "1"), ("Threads", "1"))
    missing += [name for name, value in wanted if status[name] != value]
    kinds = (*KINDS, "user")
    if len(namespaces) != len(kinds):
        missing.append("descriptors of namespaces")
    for kind, fd in zip(kinds, namespaces):
        if os.stat(f"/proc/{pid}/ns/{kind}").st_ino != os.fstat(fd).st_ino:
            missing.append(f"namespace {kind}")
    return missing


_SHARED_AT, _READ_AND_WRITE = 0x11, 3  # MAP_SHARED | MAP_FIXED, PROT_READ | PROT_WRITE
_SYSTEM_CALL = b"\x0f\x05"
_CLONE_NUMBER, _FORK_NUMBER = 56, 57


def fork_call(made: Traced) -> tuple[int, tuple[int, ...]]:
    """Address of the system call that made a process, which has not gone on since, and arguments of
    a `clone` that makes another one like it."""
    registers = made.registers
    number, site = registers["orig_rax"], registers["rip"] - len(_SYSTEM_CALL)
    is_call = made.read(site, len(_SYSTEM_CALL)) == _SYSTEM_CALL
    if not is_call or number not in (_CLONE_NUMBER, _FORK_NUMBER):
        raise CannotForkError("its Python forks in a way that nsm does not know")
    if number == _FORK_NUMBER:
        return site, (int(signal.SIGCHLD), 0, 0, 0, 0)
    if registers["rdi"] & CLONE_SHARED:
        raise CannotForkError("its Python shares memory or descriptors with what it forks")
    return site, tuple(registers[name] for name in ("rdi", "rsi", "rdx", "r10", "r8"))


def private_descriptors(traced: Traced, page: int) -> Sequence[int]:
    """The control socket of a worker, and what 0, 1 and 2 are put back from, as its page tells."""
    private: Sequence[int] = struct.unpack("4Q", traced.read(page + 16, 32))
    if len({number for number in private if 2 < number < 1 << 20}) < 4:
        raise CannotForkError("its descriptors are not those that nsm has given it")
    return private


def give_descriptors(
    calls: CallList,
    moved: Mapping[int, Sequence[int]],
    page: tuple[int, int],
    rseq: tuple[int, int, int],
) -> set[int]:
    """Have a worker lead a session, with descriptors and a page of its own; returns their places.

    Args:
        moved: places of each new descriptor, which is closed.
        page: address of the page, 0 for none, and its descriptor, closed if it is not moved.
        rseq: as of `Traced.rseq`: a process that has its memory from another one has lost it.
    """
    address, page_fd = page
    places = {place for several in moved.values() for place in several}
    if not places.isdisjoint([*moved, page_fd]):
        raise CannotForkError("code has opened descriptors in the place of nsm's")
    if address:
        size = os.sysconf("SC_PAGESIZE")
        calls.add("mmap", address, size, _READ_AND_WRITE, _SHARED_AT, page_fd, 0)
    calls.add("setsid")
    area, length, signature = rseq
    if area:
        calls.add("rseq", area, length, 0, signature, may_fail=True)
    for fd, targets in moved.items():
        for target in targets:
            calls.add("dup3", fd, target, 0 if target < 3 else os.O_CLOEXEC)
        calls.add("close", fd)
    if page_fd not in moved:
        calls.add("close", page_fd)
    return places


def take_rights(calls: CallList, last_capability: int) -> None:
    """Take all capabilities away, of which the kernel's highest is given."""
    for capability in range(last_capability + 1):
        calls.add("prctl", PR_CAPBSET_DROP, capability, 0, 0, 0)
    calls.add("prctl", PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0)
    header = calls.data(struct.pack("Ii24x", CAPABILITY_VERSION_3, 0))
    calls.add("capset", header, header + 8)
