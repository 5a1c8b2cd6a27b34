"""A process that is to be forked: what of it cannot be copied, and what has to be opened again."""

from __future__ import annotations

import os
import re
import signal
import stat
from contextlib import suppress
from typing import NamedTuple

from sandbox.gpus import gpu_of

PAGE = "/memfd:shared (deleted)"
"""Name in maps of the page that a worker shares with its agent."""

CODE = "/memfd:code (deleted)"
"""Name of the file from which a shell reads code, among its descriptors."""

_OWN = ("/workspace", "/tmp", "/dev/shm")  # noqa: S108
"""Directories of files of a session's own."""

_MAP = re.compile(r"([0-9a-f]+)-([0-9a-f]+) (\S{4}) \S+ \S+ (\d+)\s*(.*)")


class CannotForkError(Exception):
    """A session cannot be forked; the message says why, for people."""


class FileToOpen(NamedTuple):
    """A file that a fork opens again: descriptor, path, flags of open(2), offset."""

    fd: int
    path: str
    flags: int
    offset: int


class Descriptors(NamedTuple):
    """Descriptors of a process: what is opened again, and what is closed, with words for people."""

    files: list[FileToOpen]
    closed: dict[int, str]


def read(path: str) -> str:
    """Text of a file of /proc."""
    with open(path, encoding="utf-8", errors="surrogateescape") as file:
        return file.read()


def status_of(pid: int) -> dict[str, str]:
    """Fields of /proc/PID/status."""
    pairs = (line.partition(":") for line in read(f"/proc/{pid}/status").splitlines())
    return {name: value.strip() for name, _, value in pairs}


def worker_of(agent: int, interpreter: str) -> int:
    """Process id of the interpreter of a session.

    Raises:
        CannotForkError: there is none.
    """
    found = [pid for pid in children_of(agent) if not is_dead(pid)]
    if interpreter == "bash":
        found = [pid for pid in found if code_fd_of(pid) >= 0]
    elif len(found) > 1:
        # Beside it there may be checkpoints, which block all signals, and programs.
        found = [pid for pid in found if has_page(pid) and not _is_frozen(pid)]
    if len(found) != 1:
        raise CannotForkError("no interpreter waits for code in it")
    return found[0]


def code_fd_of(pid: int) -> int:
    """Descriptor of the file from which a shell reads code; -1 if the process is no shell.

    Code may have opened that file again, at a lower number.
    """
    found = [-1]
    with suppress(OSError):
        for name in os.listdir(f"/proc/{pid}/fd"):
            with suppress(OSError):
                if os.readlink(f"/proc/{pid}/fd/{name}") == CODE:
                    found.append(int(name))
    return max(found)


def has_page(pid: int) -> bool:
    """Tell whether it shares a page with the agent, as interpreters and checkpoints do."""
    try:
        return PAGE in read(f"/proc/{pid}/maps")
    except OSError:  # it has ended, or nobody may look at it
        return False


def _is_frozen(pid: int) -> bool:
    never = 1 << signal.SIGKILL - 1 | 1 << signal.SIGSTOP - 1
    lowest = (1 << 31) - 1  # the C library keeps two of the others for itself
    return not ~(int(status_of(pid)["SigBlk"], 16) | never) & lowest


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
        names = sorted({read(f"/proc/{pid}/task/{task}/comm").strip() for task in tasks})
        raise CannotForkError(
            f"it runs {len(tasks) - 1} threads beside its main one ({', '.join(names)[:200]}), "
            "which a fork would not have"
        )


def children_of(pid: int) -> set[int]:
    """Process ids of the children of all threads of a process; none if it has ended."""
    try:
        tasks = os.listdir(f"/proc/{pid}/task")
        return {
            int(child)
            for task in tasks
            for child in read(f"/proc/{pid}/task/{task}/children").split()
        }
    except FileNotFoundError:
        return set()


def is_dead(pid: int) -> bool:
    """Tell whether a process has ended."""
    try:
        status = status_of(pid)
        # A program whose main thread has ended looks dead while its other threads go on.
        return status.get("State", "X")[0] in "ZX" and int(status.get("Threads", "0")) <= 1
    except OSError:
        return True


def page_of(pid: int) -> int:
    """Address of the page that it shares with its agent, which nothing else may share.

    Raises:
        CannotForkError: it has no such page, or shares memory that a fork would share as well.
    """
    page = check_memory(pid)
    if not page:
        raise CannotForkError("it has closed the memory that belongs to nsm")
    return page


def check_memory(pid: int) -> int:
    """Refuse a process with memory that a fork would share.

    Returns:
        Address of the page that it shares with its agent; 0 without.

    Raises:
        CannotForkError: it shares other memory.
    """
    page = 0
    for line in read(f"/proc/{pid}/maps").splitlines():
        if (found := _MAP.fullmatch(line)) is None:
            raise CannotForkError(f"its memory cannot be read: {line[:200]}")
        start, _, rights, inode, path = found.groups()
        if path == PAGE and not page:
            page = int(start, 16)
        elif rights[3] == "s" and (rights[1] == "w" or _is_own(path)):
            raise CannotForkError(
                f"it shares memory ({path or 'anonymous'}), which its fork would share with it"
            )
        elif inode != "0" and _is_own(path):
            raise CannotForkError(
                f"it has {path} in its memory: what it writes to that file, its fork would see"
            )
    return page


def _is_own(path: str) -> bool:
    plain = path.removesuffix(" (deleted)")
    is_below = any(plain == place or plain.startswith(f"{place}/") for place in _OWN)
    return is_below or plain.startswith(("/memfd:", "/SYSV"))


def descriptors_of(pid: int, private: set[int]) -> Descriptors:
    """Look at its descriptors.

    Args:
        private: those that belong to nsm.
    """
    files: list[FileToOpen] = []
    closed: dict[int, str] = {}
    for name in os.listdir(f"/proc/{pid}/fd"):
        fd = int(name)
        if fd in private:
            continue
        path = os.readlink(f"/proc/{pid}/fd/{name}")
        kind = os.stat(f"/proc/{pid}/fd/{name}").st_mode
        facts = dict(line.split(":", 1) for line in read(f"/proc/{pid}/fdinfo/{name}").splitlines())
        reopens = stat.S_ISREG(kind) or stat.S_ISDIR(kind) or stat.S_ISCHR(kind)
        if not reopens or not path.startswith("/") or path.endswith(" (deleted)"):
            closed[fd] = path
            continue
        flags = int(facts["flags"], 8)
        files.append(FileToOpen(fd, path, flags, int(facts["pos"])))
    return Descriptors(files, closed)
