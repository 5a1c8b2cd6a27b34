"""A process that is to be forked: what of it cannot be copied, and what has to be opened again."""

from __future__ import annotations

import os
import signal
import stat
from contextlib import suppress
from typing import NamedTuple

from sandbox.carrying.looking import PAGE, CannotForkError, proc_text, status_of

CODE = "/memfd:code (deleted)"
"""Name of the file from which a shell reads code, among its descriptors."""


REMOVED = " (deleted)"
"""Mark of /proc at the path of a file that has no name any more."""

MAX_GAPS = 64 * 1024 * 1024
"""Bytes of gaps in a file without a name that is copied. They become zeros."""


class FileToOpen(NamedTuple):
    """A file that a fork opens again: descriptor, path, flags of open(2), offset."""

    fd: int
    path: str
    flags: int
    offset: int


class UnnamedFile(NamedTuple):
    """An open file without a name, of which a fork gets a copy.

    Attributes:
        path: as /proc has it, without what says that it is removed.
        inode: device and inode.
        size: bytes.
    """

    fd: int
    path: str
    flags: int
    offset: int
    inode: tuple[int, int]
    size: int


class Descriptors(NamedTuple):
    """Descriptors of a process: what is opened again or copied, and what is closed, with words for
    people.
    """

    files: list[FileToOpen]
    unnamed: list[UnnamedFile]
    closed: dict[int, str]


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
        raise CannotForkError("no interpreter waits for code in it; run something first")
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


def check_shell(pid: int, first: int) -> None:
    """Refuse a shell whose descriptors are not those that its agent has given it.

    Args:
        first: that of the file with code; the next one leads to /dev/null.

    Raises:
        CannotForkError: code has changed them.
    """
    place = f"/proc/{pid}/fd/"
    try:
        is_intact = (
            os.readlink(f"{place}{first}") == CODE
            and os.stat(f"{place}{first + 1}").st_rdev == os.stat("/dev/null").st_rdev
        )
    except FileNotFoundError:
        is_intact = False
    if not is_intact:
        raise CannotForkError(f"code has changed descriptors from {first} on, which belong to nsm")


def has_page(pid: int) -> bool:
    """Tell whether it shares a page with the agent, as interpreters and checkpoints do."""
    try:
        return PAGE in proc_text(f"/proc/{pid}/maps")
    except OSError:  # it has ended, or nobody may look at it
        return False


def _is_frozen(pid: int) -> bool:
    never = 1 << signal.SIGKILL - 1 | 1 << signal.SIGSTOP - 1
    lowest = (1 << 31) - 1  # the C library keeps two of the others for itself
    return not ~(int(status_of(pid)["SigBlk"], 16) | never) & lowest


def children_of(pid: int) -> set[int]:
    """Process ids of the children of all threads of a process; none if it has ended."""
    try:
        tasks = os.listdir(f"/proc/{pid}/task")
        return {
            int(child)
            for task in tasks
            for child in proc_text(f"/proc/{pid}/task/{task}/children").split()
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


def descriptors_of(pid: int, private: set[int]) -> Descriptors:
    """Look at its descriptors.

    Args:
        private: those that belong to nsm.
    """
    files: list[FileToOpen] = []
    unnamed: list[UnnamedFile] = []
    closed: dict[int, str] = {}
    for name in os.listdir(f"/proc/{pid}/fd"):
        fd = int(name)
        if fd in private:
            continue
        path = os.readlink(f"/proc/{pid}/fd/{name}")
        status = os.stat(f"/proc/{pid}/fd/{name}")
        kind = status.st_mode
        facts = dict(
            line.split(":", 1) for line in proc_text(f"/proc/{pid}/fdinfo/{name}").splitlines()
        )
        reopens = stat.S_ISREG(kind) or stat.S_ISDIR(kind) or stat.S_ISCHR(kind)
        flags, offset = int(facts["flags"], 8), int(facts["pos"])
        is_removed = path.endswith(REMOVED) and not _is_at(f"/proc/{pid}/root{path}", status)
        is_file = stat.S_ISREG(kind) and path != PAGE
        if is_removed and is_file and status.st_size - 512 * status.st_blocks < MAX_GAPS:
            inode = status.st_dev, status.st_ino
            path = path.removesuffix(REMOVED)
            unnamed.append(UnnamedFile(fd, path, flags, offset, inode, status.st_size))
        elif reopens and path.startswith("/") and not is_removed:
            files.append(FileToOpen(fd, path, flags, offset))
        else:
            closed[fd] = path
    return Descriptors(files, unnamed, closed)


def _is_at(path: str, status: os.stat_result) -> bool:
    try:
        return os.path.samestat(os.stat(path), status)
    except OSError:
        return False
