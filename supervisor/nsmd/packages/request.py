"""One build: what is asked for, what it says meanwhile, and what it has made."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import AbstractContextManager, asynccontextmanager
from typing import TypeVar

import trio

from nsm.dataclass import dataclass, field, replace
from nsmd.host.command_log import CommandProgress, lines_of
from nsmd.host.command_monitor import Log
from nsmd.host.commands import OnProgress
from nsmd.model.packages import WantedPackages

REMOVE_S = 5.0
"""Longest wait for the removal of a build's files; the next build removes what is left."""

T = TypeVar("T")


class InstallError(Exception):
    """An environment cannot be made. Its message is a sentence without its final dot; its hint says
    what to do next.
    """

    def __init__(self, message: str, hint: str = "") -> None:
        self.message = message
        self.hint = hint
        super().__init__(message)


@dataclass(frozen=True, slots=True, kw_only=True)
class InstallRequest:
    """An environment to make.

    Attributes:
        refresh: look for newer versions than its lock has.
        store: directory of environments.
        lock_directories: directories for its lock, the best first.
        search_path: value of PATH.
        variables: variables of the user, which may configure pip.
        hosts: further hosts that a build may reach.
    """

    name: str
    wanted: WantedPackages
    refresh: bool
    store: str
    lock_directories: tuple[str, ...]
    search_path: str
    home: str
    variables: Mapping[str, str] = field(default_factory=dict[str, str], repr=False)
    hosts: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Installed:
    """An environment that was made, or was there: its directory, the path of its lock (empty if
    there is none), and a sentence about what did not go as it should.
    """

    path: str
    lock: str
    note: str = ""


class BuildReport:
    """The log of a build, and its progress for those who wait.

    Args:
        log_fd: an open file for the log; the caller closes it.

    Attributes:
        received: returns the number of bytes that have come so far.
    """

    def __init__(self, log_fd: int, on_progress: OnProgress) -> None:
        self._log = Log(log_fd)
        self._on_progress = on_progress
        self._progress = CommandProgress(phase="resolving")
        self.received: Callable[[], int] = int

    def say(self, text: str) -> None:
        """Take lines for the log."""
        if lines := lines_of(text):
            self._log.add(lines)
            self._progress = replace(self._progress, activity=lines[-1].strip()[:200])

    def enter(self, phase: str) -> None:
        """Say that a phase begins."""
        self._progress = replace(self._progress, phase=phase, activity="")
        self.tell()

    def tell(self) -> None:
        """Write the lines so far, and tell the progress."""
        self._log.flush()
        self._on_progress(
            replace(self._progress, downloaded_bytes=self.received()), self._log.written
        )

    def close(self) -> None:
        """Write the rest of the log."""
        self._log.close()


async def in_thread(function: Callable[..., T], *arguments: object) -> T:
    """Run a function that blocks; a build that is cancelled leaves it to its end."""
    return await trio.to_thread.run_sync(function, *arguments, abandon_on_cancel=True)


@asynccontextmanager
async def entered(blocking: AbstractContextManager[T]) -> AsyncGenerator[T]:
    """Enter and leave a context whose functions block."""
    value = await trio.to_thread.run_sync(blocking.__enter__)
    try:
        yield value
    finally:
        with trio.move_on_after(REMOVE_S, shield=True):
            await in_thread(blocking.__exit__, None, None, None)
