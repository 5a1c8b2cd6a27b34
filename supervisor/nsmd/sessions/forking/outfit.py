"""Descriptors, files and privileges of the worker of a fork, changed while it is stopped."""

from __future__ import annotations

import os
import struct
from collections.abc import Container, Sequence
from typing import NamedTuple

from nsmd.sessions.forking.original import REMOVED, Descriptors, FileToOpen, UnnamedFile
from sandbox.carrying.call_lists import CallList, CallLists, ResultOf
from sandbox.carrying.looking import CannotForkError
from sandbox.carrying.ptrace import Traced
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

_MEMORY_FILE = "/memfd:"

_MOST_SENT = 0x7FFF_F000
"""Most bytes of one sendfile(2)."""


class Found(NamedTuple):
    """Parts of the original's worker in the place of which a fork gets its own.

    Attributes:
        page: address of the page that it shares with its agent; 0 in a shell.
        private: its control socket, and the descriptors that nsm puts back as 0, 1 and 2.
        code: of a shell, the descriptor of the file with code; -1 in others.
        descriptors: all others.
        cwd: its working directory.
        rseq: address, size and signature of its area for restartable sequences.
    """

    page: int
    private: Sequence[int]
    code: int
    descriptors: Descriptors
    cwd: str
    rseq: tuple[int, int, int]


class Outfit:
    """Descriptors, files and rights that the worker of every fork gets.

    Args:
        lists: memory of the workers for lists of calls.
        original: the same of the original's worker.
        last_capability: the highest number of one.
    """

    def __init__(self, lists: CallLists, original: Found, last_capability: int) -> None:
        self.lists, self._original = lists, original
        self._last_capability = last_capability

    def equip(self, worker: Traced, theirs: Sequence[int]) -> None:
        """Give the fork's worker descriptors, page and working directory of its own, and take its
        privileges away."""
        out, err, control, page = theirs
        at, nothing, saved_out, saved_err = self._original.private
        moved = {out: (1, saved_out), err: (2, saved_err), control: (at,)}
        if self._original.code >= 0:
            moved = {
                out: (saved_out,),
                err: (saved_err,),
                control: (at,),
                page: (self._original.code,),
            }
        # A number that is both a new descriptor and the place of another one.
        places = {place for several in moved.values() for place in several}
        if not places.isdisjoint([*moved, page]):
            raise CannotForkError("code has opened descriptors in the place of nsm's")
        calls = self.lists.begin(worker)
        size = os.sysconf("SC_PAGESIZE")
        if self._original.page:
            calls.add("mmap", self._original.page, size, _READ_WRITE, _SHARED_FIXED, page, 0)
        calls.add("setsid")
        address, length, signature = self._original.rseq
        if address:  # a process that has its memory from another one has lost it
            calls.add("rseq", address, length, 0, signature, may_fail=True)
        for fd, targets in moved.items():
            for target in targets:
                calls.add("dup3", fd, target, 0 if target < 3 else os.O_CLOEXEC)
            calls.add("close", fd)
        if page not in moved:
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
        calls = self._reopen(worker, calls, theirs)
        calls = self._copy_unnamed(worker, calls, {*places, *theirs})
        self._disarm(calls)
        calls.run()

    def _reopen(self, worker: Traced, calls: CallList, theirs: Sequence[int]) -> CallList:
        """Open files of the original on the copy, at the same offsets; close those that fail."""
        asked: list[tuple[FileToOpen, int, int]] = []
        nothing = self._original.private[1]

        def settle() -> CallList:
            results = calls.run()
            following = self.lists.begin(worker)
            for file, opened, moved in asked:
                if results[opened] < 0:
                    self._original.descriptors.closed[file.fd] = file.path
                    following.add("dup3", nothing, file.fd, os.O_CLOEXEC)
                elif results[moved] < 0:
                    raise CannotForkError(f"{file.path} cannot be opened again")
            asked.clear()
            return following

        for file in self._original.descriptors.files:
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
        for file in self._original.descriptors.unnamed:
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
                self._original.descriptors.closed[file.fd] = f"{file.path}{REMOVED}"
                calls.add("dup3", self._original.private[1], file.fd, os.O_CLOEXEC)
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
        for capability in range(self._last_capability + 1):
            calls.add("prctl", PR_CAPBSET_DROP, capability, 0, 0, 0)
        calls.add("prctl", PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0)
        header = calls.data(struct.pack("Ii24x", CAPABILITY_VERSION_3, 0))
        calls.add("capset", header, header + 8)
