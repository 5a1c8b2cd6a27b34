"""Processes as /proc shows them, and signals to them."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import time

from sandbox.framing import READ_BYTES
from sandbox.linux import open_pidfd, signal_pidfd

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping


ENDING_LOOKS = 50
"""At a child that has closed its socket, one a millisecond, until it is believed to live on."""

EXEC_LOOKS = 20
EXEC_LOOK_S = 0.001
"""How often, and how far apart, a fork is looked at that may execute another program."""


class Process:
    """One row of /proc; `started` in clock ticks since boot.

    Attributes:
        stack: where its stack begins, which a fork keeps and another program does not; 0 if it has
            ended or hides it.
    """

    __slots__ = ("group", "parent", "pid", "session", "stack", "started", "state")

    def __init__(self, pid: int, stat: bytes) -> None:
        # The name in parentheses may hold anything; what follows the last one is numbers.
        fields = stat[stat.rindex(b")") + 2 :].split()
        self.pid = pid
        self.state = fields[0]
        self.parent, self.group, self.session = (int(fields[1]), int(fields[2]), int(fields[3]))
        self.started = int(fields[19])
        self.stack = int(fields[25])

    @property
    def alive(self) -> bool:
        return self.state not in {b"Z", b"X", b"x"}


def read_processes() -> dict[int, Process]:
    """Every process that /proc shows, by pid; empty where there is no /proc."""
    table: dict[int, Process] = {}
    with contextlib.suppress(FileNotFoundError):
        for entry in os.listdir("/proc"):
            if entry.isdigit():
                row = read_process(int(entry))
                if row is not None:
                    table[row.pid] = row
    return table


class NewestPid:
    """Tells the pid that was given last in our PID namespace; 0 where /proc does not say."""

    def __init__(self) -> None:
        self._fd = -1

    def open(self) -> None:
        """Begin, in the process that is to ask."""
        try:
            self._fd = os.open("/proc/loadavg", os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            self._fd = -1

    def pid(self) -> int:
        try:
            return int(os.pread(self._fd, 128, 0).split()[4])
        except (OSError, ValueError, IndexError):
            return 0


def read_process(pid: int) -> Process | None:
    """One row of /proc; None when the process is gone."""
    with contextlib.suppress(OSError, ValueError):
        fd = os.open(f"/proc/{pid}/stat", os.O_RDONLY | os.O_CLOEXEC)
        try:
            return Process(pid, os.read(fd, 4096))
        finally:
            os.close(fd)
    return None


def command_of(pid: int) -> bytes:
    """Return the beginning of a process's command line; empty if it has ended."""
    with contextlib.suppress(OSError), open(f"/proc/{pid}/cmdline", "rb") as file:
        return file.read(4096)
    return b""


def is_helper(command: bytes) -> bool:
    """Return whether a command line is that of a process that Python's multiprocessing runs for
    itself. It ends with the program."""
    return b"resource_tracker" in command or b"multiprocessing.forkserver" in command


def tree_of(table: Mapping[int, Process], leader: int, adopted: Iterable[int]) -> set[int]:
    """Pids of a session leader, of its session, of `adopted`, and of everyone below them."""
    members = {pid for pid, row in table.items() if row.session == leader or pid == leader}
    members.update(pid for pid in adopted if pid in table)
    grown = True
    while grown:
        below = {pid for pid, row in table.items() if row.parent in members} - members
        members |= below
        grown = bool(below)
    return members


class Children:
    """Children of this process, which has one thread: all of them, also those that /proc hides, and
    also if no descriptor is left.
    """

    def __init__(self) -> None:
        self._fd = -1

    def open(self) -> None:
        """Begin, in the process that is to ask."""
        with contextlib.suppress(OSError):
            pid = os.getpid()
            self._fd = os.open(f"/proc/{pid}/task/{pid}/children", os.O_RDONLY | os.O_CLOEXEC)

    def pids(self) -> set[int]:
        if self._fd < 0:  # the kernel does not tell them (CONFIG_PROC_CHILDREN)
            own = os.getpid()
            return {row.pid for row in read_processes().values() if row.parent == own}
        text = b""
        with contextlib.suppress(OSError):
            while data := os.pread(self._fd, READ_BYTES, len(text)):
                text += data
        return {int(pid) for pid in text.split()}


def read_children(pid: int) -> set[int]:
    """Children of a process that has one thread; one read, no scan of /proc."""
    try:
        with open(f"/proc/{pid}/task/{pid}/children", "rb", buffering=0) as file:
            return {int(pid) for pid in file.read(READ_BYTES).split()}
    except OSError:
        return set()


def has_children_of(pid: int) -> bool:
    """Return whether a process has children, or cannot be looked at."""
    try:
        for thread in os.listdir(f"/proc/{pid}/task"):
            with open(f"/proc/{pid}/task/{thread}/children", "rb", buffering=0) as file:
                if file.read(1):
                    return True
    except OSError:
        return True
    return False


def signal_child(pid: int, number: int) -> None:
    """Signal a child of this process; nobody, if it has been reaped or never was one.

    The number of a child is its own until it is reaped.
    """
    if _is_child(pid):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, number)


def signal_group(leader: int, number: int) -> None:
    """Signal the process group that a child of this process leads; nobody, if that is none."""
    if _is_child(leader):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(leader, number)


def _is_child(pid: int) -> bool:
    assert pid > 1, "for kill(2), 0 and -1 are groups of processes, and 1 is the agent"
    try:
        os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return False
    return True


def signal_process(row: Process, number: int) -> None:
    """Signal a process that may be gone, and whose number may be another one's by now."""
    try:
        pidfd = open_pidfd(row.pid)
    except OSError:  # it is gone, or no descriptor is left
        return
    try:
        # What has the number now had it before, or the descriptor is of one that is gone.
        now = read_process(row.pid)
        if now is not None and now.started == row.started:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                signal_pidfd(pidfd, number)
    finally:
        os.close(pidfd)


def await_end(pid: int, deadline: float) -> None:
    """Wait until a child has ended, and leave it to be reaped.

    Args:
        deadline: time on the monotonic clock when it is given up.
    """
    try:
        pidfd = open_pidfd(pid)
    except OSError:  # no descriptor is left
        is_ending(pid)
        return
    ended = select.poll()
    ended.register(pidfd, select.POLLIN)
    ended.poll(max(0.0, deadline - time.monotonic()) * 1000)
    os.close(pidfd)


def is_ending(pid: int) -> bool:
    """Return whether a child has ended, or does so within some milliseconds; it is left to be
    reaped."""
    for _ in range(ENDING_LOOKS):
        try:
            if os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None:
                return True
        except ChildProcessError:
            return True
        time.sleep(0.001)
    return False


def caught_signals(pid: int) -> int:
    """Mask of the signals that a process has handlers for; 0 when it is gone."""
    try:
        with open(f"/proc/{pid}/status", "rb", buffering=0) as file:
            return int(file.read(READ_BYTES).partition(b"\nSigCgt:")[2].split(None, 1)[0], 16)
    except (OSError, IndexError, ValueError):
        return 0


def ignores_interrupts(pid: int) -> bool:
    """Return whether SIGINT would be lost on a process; False where /proc does not say."""
    try:
        with open(f"/proc/{pid}/status", "rb", buffering=0) as file:
            mask = file.read(READ_BYTES).partition(b"\nSigIgn:")[2].split(None, 1)[0]
        return bool(int(mask, 16) >> signal.SIGINT - 1 & 1)
    except (OSError, ValueError, IndexError):
        return False
