"""Processes that tests start themselves."""

from __future__ import annotations

import os
import select
import signal
import subprocess
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, AnyStr, Self

import trio

if TYPE_CHECKING:
    from collections.abc import Container, Generator, Iterable, Iterator

ENDING_S = 120.0
"""Far above the milliseconds that an end takes."""


@contextmanager
def ending(process: subprocess.Popen[AnyStr]) -> Generator[subprocess.Popen[AnyStr]]:
    """Wait for its end after the block, and bring it about if the block fails.

    `Popen` as a context manager only waits, so that a failing test would never end.
    """
    with process:
        try:
            yield process
        except BaseException:
            process.kill()
            raise


@contextmanager
def stopped() -> Generator[subprocess.Popen[bytes]]:
    """A process that is stopped."""
    with subprocess.Popen(["sleep", "600"]) as process:
        try:
            process.send_signal(signal.SIGSTOP)
            os.waitid(os.P_PID, process.pid, os.WSTOPPED)
            yield process
        finally:
            process.kill()


def go_on(process: subprocess.Popen[bytes]) -> None:
    """Continue it, and wait until it runs."""
    process.send_signal(signal.SIGCONT)
    os.waitid(os.P_PID, process.pid, os.WCONTINUED)


def collect(pid: int) -> None:
    """Wait for a process's end, and collect it if it is our child."""
    with suppress(ProcessLookupError):
        pidfd = os.pidfd_open(pid)
        try:
            assert select.select([pidfd], [], [], ENDING_S)[0]
        finally:
            os.close(pidfd)
    with suppress(ChildProcessError):
        os.waitpid(pid, 0)


def tree(pid: int) -> Iterator[int]:
    """A process and all below it, as the host numbers them."""
    yield pid
    for children in Path(f"/proc/{pid}/task").glob("*/children"):
        for child in children.read_text().split():
            yield from tree(int(child))


def child_pids(known: Container[int] = ()) -> list[int]:
    """Children of this process, zombies included, without those that are known."""
    pid = os.getpid()
    found = map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split())
    return [each for each in found if each not in known]


def descriptors() -> set[str]:
    """Descriptors open now. Ask inside a test: trio has some of its own."""
    return set(os.listdir("/proc/self/fd"))


def parent_of(pid: int) -> int:
    """The parent's process id."""
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


class Watched:
    """Processes that are told dead from alive without mistaking a successor for them."""

    def __init__(self, pids: Iterable[int]) -> None:
        self._stack = ExitStack()
        self.pidfds: list[int] = []
        for pid in pids:
            with suppress(ProcessLookupError):  # it has ended meanwhile
                self.pidfds.append(os.pidfd_open(pid))
                self._stack.callback(os.close, self.pidfds[-1])

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    @property
    def alive(self) -> int:
        """How many have not ended; a zombie has."""
        return len(self.pidfds) - len(select.select(self.pidfds, [], [], 0)[0])

    async def all_ended(self) -> None:
        """Wait for the end of each."""
        for pidfd in self.pidfds:
            await ended(pidfd)


async def ended(pidfd: int) -> None:
    """Wait for a process's end."""
    with trio.fail_after(ENDING_S):
        await trio.lowlevel.wait_readable(pidfd)
