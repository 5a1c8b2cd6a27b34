"""Limits of a box, and links that it cannot exchange: set between its making and its command.

bwrap tells which process will be the first in the box, and waits. Limits that are set before bwrap
starts would hold for the user's other processes, too, which the kernel counts with those in the
box. bwrap makes no mount over a symbolic link, as it follows it. A link that is mounted over itself
works as before, and nobody in the box can rename or remove it.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import re
import resource
import time
from collections.abc import Generator, Mapping
from contextlib import contextmanager, suppress

from nsm.paths import open_linkless
from nsmbox.model.plan import BoxLimits

_CLONE_NEWNS, _CLONE_NEWUSER = 0x20000, 0x10000000  # linux/sched.h
_NS_GET_USERNS = 0xB701  # linux/nsfs.h
_MS_NOSUID, _MS_NODEV, _MS_REMOUNT = 2, 4, 32  # linux/mount.h

_OPEN_TREE, _MOVE_MOUNT = 428, 429  # on all machines
_AT_EMPTY_PATH, _OPEN_TREE_CLONE = 0x1000, 1  # linux/fcntl.h, linux/mount.h
_MOVE_MOUNT_F_EMPTY, _MOVE_MOUNT_T_EMPTY = 0x4, 0x40  # linux/mount.h

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

    def set_limits(
        self,
        limits: BoxLimits,
        inodes: Mapping[str, int],
        links: Mapping[str, str],
        *,
        alone: bool,
    ) -> str:
        """Set the limits and let the command start. Called once, outside, where bwrap is a child.

        Args:
            links: symbolic links that the box cannot exchange, and what they say.
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
            return _limit(pid, limits, self.mounts, inodes, links, alone=alone)
        finally:
            with suppress(OSError):  # bwrap has failed
                os.write(self._opens, b"\n")
            os.close(self._opens)
            os.close(self._told)


def limit_descriptors(most: int, least: int) -> None:
    """Limit the descriptors of this process and of all that it starts.

    Args:
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
    pid: int,
    limits: BoxLimits,
    mounts: int | None,
    inodes: Mapping[str, int],
    links: Mapping[str, str],
    *,
    alone: bool,
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
        lacking.append("inotify, inodes and links: its namespaces cannot be seen")
    elif why := _limit_inside(pid, mounts, inodes, links):
        lacking.append(why)
    return "; ".join(lacking)


def _limit_inside(
    pid: int, mounts: int, inodes: Mapping[str, int], links: Mapping[str, str]
) -> str:
    """Set the limits that only a process in the box's namespaces can. Returns what failed."""
    reads, writes = os.pipe()
    child = os.fork()
    if child == 0:
        # A process that has entered a user namespace does not get back.
        said: list[str] = []
        try:
            owner = fcntl.ioctl(mounts, _NS_GET_USERNS)
            _set_namespace(owner, _CLONE_NEWUSER)
            with _noted(said, "inotify"):
                _limit_inotify()
            with _noted(said, "inodes and links"):
                _await_mounts(pid, owner)
                _set_namespace(mounts, _CLONE_NEWNS)
                for path, says in links.items():
                    with _noted(said, "links"):
                        _keep_link(path, says)
                for path, most in inodes.items():
                    _limit_inodes(path, most)
        except OSError as error:
            said.append(f"inotify, inodes and links: {error}")
        finally:
            os.write(writes, "; ".join(said).encode(errors="replace")[:_INFO_BYTES])
            os._exit(0)
    os.close(writes)
    with open(reads, "rb") as answer:
        why = answer.read().decode(errors="replace")
    os.waitpid(child, 0)
    return why


@contextmanager
def _noted(said: list[str], doing: str) -> Generator[None]:
    try:
        yield
    except (OSError, ValueError) as error:
        said.append(f"{doing}: {error}")


def _keep_link(path: str, says: str) -> None:
    """Mount a symbolic link over itself."""
    above, name = os.path.split(path)
    link = os.open(name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=open_linkless(above))
    if os.readlink("", dir_fd=link) != says:
        raise ValueError(f"{path} leads elsewhere by now, and can be exchanged")
    try:
        tree = _system_call(_OPEN_TREE, link, b"", _AT_EMPTY_PATH | _OPEN_TREE_CLONE)
        _system_call(_MOVE_MOUNT, tree, b"", link, b"", _MOVE_MOUNT_F_EMPTY | _MOVE_MOUNT_T_EMPTY)
    except OSError as error:
        raise OSError(error.errno, f"{path} can be exchanged: {error.strerror}") from error


def _system_call(number: int, *arguments: int | bytes) -> int:
    libc = ctypes.CDLL(None, use_errno=True)
    result = int(libc.syscall(ctypes.c_long(number), *arguments))
    if result < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return result


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
            raise TimeoutError("bwrap does not finish the box's mounts")
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
