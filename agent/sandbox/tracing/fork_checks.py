"""A process that is to be forked, as /proc shows it: what of it no fork may share."""

from __future__ import annotations

import os
import re

from sandbox.gpus import gpu_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

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
    """Refuse a process that uses a GPU: the driver's state is of this process alone.

    Raises:
        CannotForkError: it uses one.
    """
    if gpu := gpu_of(pid):
        raise CannotForkError(f"it uses a GPU ({gpu}), whose state no fork can have")


def check_threads(pid: int) -> None:
    """Refuse a process with threads: a fork would not have them.

    Raises:
        CannotForkError: it has threads.
    """
    tasks = os.listdir(f"/proc/{pid}/task")
    if len(tasks) > 1:
        names = sorted({proc_text(f"/proc/{pid}/task/{task}/comm").strip() for task in tasks})
        raise CannotForkError(
            f"it runs {len(tasks) - 1} threads beside its main one ({', '.join(names)[:200]}), "
            "which a fork would not have"
        )


def filters_of(pid: int) -> int:
    """Number of filters of system calls that a process has.

    Raises:
        CannotForkError: the kernel does not tell.
    """
    found = status_of(pid).get("Seccomp_filters")
    if found is None:
        raise CannotForkError(
            "this kernel does not tell how many system call filters a process has, which takes "
            "Linux 5.9"
        )
    return int(found)


def check_filters(pid: int, usual: int) -> None:
    """Refuse a process with a filter of its own: that could pretend that calls were made.

    Raises:
        CannotForkError: it has another number of filters.
    """
    if filters_of(pid) != usual:
        raise CannotForkError("code has installed a filter of system calls in it")


def page_of(pid: int, inode: int = 0) -> int:
    """Address of the page that it shares with its agent, which nothing else may share.

    Args:
        inode: inode that the page must have; 0 accepts any.

    Raises:
        CannotForkError: it has no such page, or shares memory that a fork would share as well.
    """
    page = check_memory(pid, inode)
    if not page:
        raise CannotForkError("it has closed the memory that belongs to nsm")
    return page


def check_memory(pid: int, page_inode: int = 0) -> int:
    """Refuse a process with memory that a fork would share.

    Args:
        page_inode: inode that the page shared with its agent must have; 0 accepts any.

    Returns:
        Address of the page that it shares with its agent; 0 without.

    Raises:
        CannotForkError: it shares other memory.
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
