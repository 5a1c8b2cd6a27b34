"""Descriptors, files and privileges of the worker of a fork, changed while it is stopped."""

from __future__ import annotations

import os
import socket
import struct
from collections.abc import Sequence
from typing import NamedTuple

from nsmd.sessions.forking.call_lists import CallLists
from nsmd.sessions.forking.original import CannotForkError, Descriptors, FileToOpen
from nsmd.sessions.forking.ptrace import Traced, libc
from sandbox.linux import LANDLOCK_SCOPE_SIGNAL, landlock_attributes
from sandbox.template.kernel import (
    CAPABILITY_VERSION_3,
    PR_CAP_AMBIENT,
    PR_CAP_AMBIENT_CLEAR_ALL,
    PR_CAPBSET_DROP,
)

_AT_FDCWD = -100
_SHARED_FIXED, _READ_WRITE = 0x11, 3
_OPENING_ONCE = os.O_CREAT | os.O_EXCL | os.O_TRUNC
_FILES_AT_ONCE = 16
_PIDFD_GETFD = 438


class Found(NamedTuple):
    """Parts of the original's worker in the place of which a fork gets its own.

    Attributes:
        page: address of the page that it shares with its agent.
        private: its control socket, and the descriptors that nsm puts back as 0, 1 and 2.
        descriptors: all others.
        cwd: its working directory.
    """

    page: int
    private: Sequence[int]
    descriptors: Descriptors
    cwd: str


class Outfit:
    """Descriptors, files and rights that the worker of every fork gets.

    Args:
        lists: memory of the workers for lists of calls.
        original: the same of the original's worker.
    """

    def __init__(self, lists: CallLists, original: Found) -> None:
        self.lists, self._original = lists, original

    def equip(self, worker: Traced, theirs: Sequence[int]) -> None:
        """Give the fork's worker descriptors, page and working directory of its own, and take its
        privileges away."""
        out, err, control, page = theirs
        at, nothing, saved_out, saved_err = self._original.private
        moved = {out: (1, saved_out), err: (2, saved_err), control: (at,)}
        # A number that is both a new descriptor and the place of another one.
        places = {place for several in moved.values() for place in several}
        if not places.isdisjoint([*moved, page]):
            raise CannotForkError("code has opened descriptors in the place of nsm's")
        calls = self.lists.begin(worker)
        size = os.sysconf("SC_PAGESIZE")
        calls.add("mmap", self._original.page, size, _READ_WRITE, _SHARED_FIXED, page, 0)
        calls.add("setsid")
        for fd, targets in moved.items():
            for target in targets:
                calls.add("dup3", fd, target, 0 if target < 3 else os.O_CLOEXEC)
            calls.add("close", fd)
        calls.add("close", page)
        for path in ("/workspace", self._original.cwd):
            calls.add("chdir", calls.data(os.fsencode(path) + b"\0"), may_fail=True)
        # Not closed: what has them open would close the next file that gets the number.
        for fd in self._original.descriptors.closed:
            if fd not in places:
                if calls.is_full:
                    calls.run()
                    calls = self.lists.begin(worker)
                calls.add("dup3", nothing, fd, os.O_CLOEXEC)
        attributes = landlock_attributes(LANDLOCK_SCOPE_SIGNAL)
        address = calls.data(attributes)
        place = calls.add("landlock_create_ruleset", address, len(attributes), 0)
        ruleset = calls.run()[place]
        self._reopen(
            worker, [each for each in self._original.descriptors.files if each.fd not in theirs]
        )
        self._disarm(worker, ruleset)

    def _reopen(self, worker: Traced, files: Sequence[FileToOpen]) -> None:
        """Open files of the original on the copy, at the same offsets; close those that fail."""
        for begin in range(0, len(files), _FILES_AT_ONCE):
            several = files[begin : begin + _FILES_AT_ONCE]
            calls = self.lists.begin(worker)
            for file in several:
                path = calls.data(os.fsencode(file.path) + b"\0")
                flags = file.flags & ~_OPENING_ONCE
                calls.add("openat", _AT_FDCWD, path, flags, 0, may_fail=True)
            opened = calls.run()
            calls = self.lists.begin(worker)
            for file, fresh in zip(several, opened, strict=True):
                if fresh < 0:
                    self._original.descriptors.closed[file.fd] = file.path
                    calls.add("dup3", self._original.private[1], file.fd, os.O_CLOEXEC)
                    continue
                if file.offset:
                    calls.add("lseek", fresh, file.offset, os.SEEK_SET, may_fail=True)
                calls.add("dup3", fresh, file.fd, file.flags & os.O_CLOEXEC)
                calls.add("close", fresh)
            calls.run()

    def _disarm(self, worker: Traced, ruleset: int) -> None:
        """Take its privileges away, and have it enter a Landlock domain, as the original did."""
        calls = self.lists.begin(worker)
        calls.add("landlock_restrict_self", ruleset, 0)
        calls.add("close", ruleset)
        with open("/proc/sys/kernel/cap_last_cap", encoding="utf-8") as file:
            last = int(file.read())
        for capability in range(last + 1):
            calls.add("prctl", PR_CAPBSET_DROP, capability, 0, 0, 0)
        calls.add("prctl", PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0)
        header = calls.data(struct.pack("Ii24x", CAPABILITY_VERSION_3, 0))
        calls.add("capset", header, header + 8)
        calls.run()


def pass_descriptors(lists: CallLists, traced: Traced, descriptors: Sequence[int]) -> list[int]:
    """Give a stopped process descriptors of this process, over a pair of sockets that it makes."""
    calls = lists.begin(traced)
    pair = calls.data(bytes(8))
    calls.add("socketpair", socket.AF_UNIX, socket.SOCK_STREAM, 0, pair)
    calls.run()
    ends = struct.unpack("2i", traced.read(pair, 8))
    pidfd = os.pidfd_open(traced.pid)
    ours = socket.socket(fileno=_taken(pidfd, ends[0]))
    os.close(pidfd)
    with ours:
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
        calls.run()
    raw = traced.read(control + socket.CMSG_LEN(0), 4 * len(descriptors))
    return list(struct.unpack(f"{len(descriptors)}i", raw))


def _taken(pidfd: int, fd: int) -> int:
    """A duplicate of another process's descriptor.

    Raises:
        OSError: the kernel refuses.
    """
    taken: int = libc.syscall(_PIDFD_GETFD, pidfd, fd, 0)
    if taken < 0:
        raise OSError("a descriptor of the fork cannot be taken")
    return taken
