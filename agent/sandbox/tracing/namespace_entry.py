"""Namespaces and descriptors that a stopped process is given by its tracer."""

from __future__ import annotations

import os
import signal
import socket
import struct

from sandbox.template.kernel import libc
from sandbox.tracing.call_lists import CallLists, StoredAt
from sandbox.tracing.fork_checks import status_of
from sandbox.tracing.ptrace import CLONE_VM, Traced

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence


KINDS = ("mnt", "ipc", "uts", "net", "cgroup", "pid")
"""Namespaces of a session besides that of its user, in the order in which they are entered."""

_CAPABILITIES = ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb")
_PIDFD_GETFD = 438


def enter_namespaces(
    lists: CallLists, traced: Traced, namespaces: Sequence[int], theirs: Sequence[int]
) -> tuple[Traced, list[int]]:
    """Have a stopped process enter namespaces, and make another one there.

    It gets the descriptors over a pair of sockets that it makes.

    Args:
        namespaces: descriptors of this process.
        theirs: further descriptors of this process, which it is to have.

    Returns:
        The other process, which shares its memory, and its numbers of `theirs`.
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
    """Name what /proc shows a process to lack before it may run code: empty if nothing.

    Args:
        namespaces: descriptors of those that it has to be in: `KINDS`, and its user's.
    """
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
