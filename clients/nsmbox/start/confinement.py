"""Limits of a box that are set between its making and the start of its command.

bwrap tells which process will be the first in the box, and waits. Limits that are set before bwrap
starts would hold for the user's other processes, too, which the kernel counts with those in the
box.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import re
import resource
import time
from collections.abc import Mapping
from contextlib import suppress

from nsmbox.model.limits import BoxLimits

_CLONE_NEWNS, _CLONE_NEWUSER = 0x20000, 0x10000000  # linux/sched.h
_NS_GET_USERNS = 0xB701  # linux/nsfs.h
_MS_NOSUID, _MS_NODEV, _MS_REMOUNT = 2, 4, 32  # linux/mount.h

_INFO_BYTES = 4096

_INOTIFY = ("instances", "watches")

_LEAST_INOTIFY = 16
"""Smallest number of each, on a host that gives its users few."""


_MOUNTED_S = 5.0
"""Time limit for bwrap to make the box's mounts, which takes milliseconds."""


class Gate:
    """The wait of a box before its command. The process that makes it keeps one end of each pipe,
    and bwrap has the other.

    Attributes:
        mounts: a descriptor of the box's mounts, which holds them after its end; None if there is
            no box, or nobody may see it.
    """

    def __init__(self) -> None:
        self._told, self._tells = os.pipe()
        self._waits, self._opens = os.pipe()
        self.mounts: int | None = None
        for number in (self._tells, self._waits):
            os.set_inheritable(number, True)

    @property
    def arguments(self) -> list[str]:
        """Arguments of bwrap."""
        return ["--info-fd", str(self._tells), "--block-fd", str(self._waits)]

    def set_limits(self, limits: BoxLimits, inodes: Mapping[str, int], *, alone: bool) -> str:
        """Set the limits and let the command start. Called once, outside, where bwrap is a child.

        Args:
            inodes: largest number of files and directories of each file system in memory.
            alone: no supervisor enforces the limit of memory, so each process has one.

        Returns:
            Limits that could not be set, and why, for people; empty if all hold.
        """
        os.close(self._tells)
        os.close(self._waits)
        try:
            pid = _first_process(self._told)
            if pid is None:
                return ""  # bwrap has said why
            with suppress(OSError):
                self.mounts = os.open(f"/proc/{pid}/ns/mnt", os.O_RDONLY | os.O_CLOEXEC)
            return _limit(pid, limits, self.mounts, inodes, alone=alone)
        finally:
            with suppress(OSError):  # bwrap has failed
                os.write(self._opens, b"\n")
            os.close(self._opens)
            os.close(self._told)


def limit_descriptors(most: int, least: int) -> None:
    """Limit the descriptors of this process and of all that it starts.

    Args:
        most: limit of a box.
        least: descriptors that bwrap needs. If there is no room for it in `most`, the box's starter
            sets that; a soft limit of the caller's is raised for it.
    """
    soft, hard = (
        max(most, least) if limit == resource.RLIM_INFINITY else limit
        for limit in resource.getrlimit(resource.RLIMIT_NOFILE)
    )
    hard = min(hard, max(most, least))
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, max(min(soft, most), least)), hard))


def _first_process(told: int) -> int | None:
    """Read which process is the first in the box; None if there is no box."""
    text = b""
    while piece := os.read(told, _INFO_BYTES):
        text += piece
    found = re.search(rb'"child-pid": *([0-9]+)', text)
    return None if found is None else int(found[1])


def _limit(
    pid: int, limits: BoxLimits, mounts: int | None, inodes: Mapping[str, int], *, alone: bool
) -> str:
    lacking: list[str] = []
    # Processes are counted in the box's own user namespace, since Linux 5.14. Memory that a program
    # has reserved and cannot write to does not count; what sanitizers reserve does, so this is not
    # for boxes with a supervisor.
    kinds = {"processes": (resource.RLIMIT_NPROC, limits.processes)}
    if alone:
        kinds["memory"] = (resource.RLIMIT_DATA, limits.memory_mb << 20)
    for name, (kind, most) in kinds.items():
        try:
            resource.prlimit(pid, kind, (most, most))
        except OSError as error:
            lacking.append(f"{name}: {error.strerror}")
    if mounts is None:
        lacking.append("inotify and inodes: its namespaces cannot be seen")
    elif why := _limit_inside(pid, mounts, inodes):
        lacking.append(why)
    return "; ".join(lacking)


def _limit_inside(pid: int, mounts: int, inodes: Mapping[str, int]) -> str:
    """Set the limits that only a process in the box's namespaces can. Returns what failed."""
    reads, writes = os.pipe()
    child = os.fork()
    if child == 0:
        # A process that has entered a user namespace does not get back.
        said, doing = "", "inotify"
        try:
            owner = fcntl.ioctl(mounts, _NS_GET_USERNS)
            _set_namespace(owner, _CLONE_NEWUSER)
            _limit_inotify()
            doing = "inodes"
            _await_mounts(pid, owner)
            _set_namespace(mounts, _CLONE_NEWNS)
            for path, most in inodes.items():
                _limit_inodes(path, most)
        except (OSError, ValueError) as error:
            said = f"{doing}: {error}"
        finally:
            os.write(writes, said.encode(errors="replace")[:_INFO_BYTES])
            os._exit(0)
    os.close(writes)
    with open(reads, "rb") as answer:
        why = answer.read().decode(errors="replace")
    os.waitpid(child, 0)
    return why


def _limit_inotify() -> None:
    """Leave half of what the user has of inotify to programs outside."""
    for kind in _INOTIFY:
        most = _number(f"/proc/sys/fs/inotify/max_user_{kind}")
        with open(f"/proc/sys/user/max_inotify_{kind}", "w", encoding="ascii") as file:
            file.write(str(max(_LEAST_INOTIFY, most // 2)))


def _await_mounts(pid: int, owner: int) -> None:
    """Wait until bwrap has made all mounts: then it enters a second user namespace."""
    deadline = time.monotonic() + _MOUNTED_S
    first = os.fstat(owner).st_ino
    while os.stat(f"/proc/{pid}/ns/user").st_ino == first:
        if time.monotonic() > deadline:
            raise OSError(0, "bwrap does not finish the box's mounts")
        time.sleep(0.001)


def _set_namespace(number: int, kind: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.setns(number, kind) < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


def _limit_inodes(path: str, most: int) -> None:
    """Limit the files of a file system in memory, for which bwrap has no option."""
    libc = ctypes.CDLL(None, use_errno=True)
    options = f"nr_inodes={most}".encode()
    flags = ctypes.c_ulong(_MS_REMOUNT | _MS_NOSUID | _MS_NODEV)
    if libc.mount(b"tmpfs", os.fsencode(path), b"tmpfs", flags, options) < 0:
        raise OSError(ctypes.get_errno(), f"{path}: {os.strerror(ctypes.get_errno())}")


def _number(path: str) -> int:
    with open(path, encoding="ascii") as file:
        return int(file.read())
