"""All processes of one nsm, and which of them is what, whoever's children they have become."""

from __future__ import annotations

import ctypes
import os
import time
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from typing import Self

_PR_SET_CHILD_SUBREAPER = 36


@dataclass(frozen=True, slots=True)
class Process:
    """One process, as proc(5) has it at some moment."""

    pid: int
    parent: int
    command: tuple[str, ...]
    zombie: bool
    in_jail: bool
    first_in_jail: bool


@dataclass(slots=True)
class Members:
    """Process ids by what they do, at some moment.

    Attributes:
        agents: the first processes of sessions and spares.
        interpreters: what agents have started, with their agent.
        fork_helpers: the fork server, and what it has forked.
    """

    supervisors: list[int] = field(default_factory=list[int])
    holders: list[int] = field(default_factory=list[int])
    shims: list[int] = field(default_factory=list[int])
    templates: list[int] = field(default_factory=list[int])
    agents: list[int] = field(default_factory=list[int])
    interpreters: dict[int, int] = field(default_factory=dict[int, int])
    fork_helpers: list[int] = field(default_factory=list[int])


class Household:
    """While its block lasts, orphans become children of this process: none is lost sight of.

    Processes that were there before do not count. At the end of the block, orphans that are about
    to end are waited for, so that a later test of the same worker does not meet them as zombies.
    """

    def __init__(self) -> None:
        self._before: set[int] = set()
        self._zombies: set[int] = set()
        self._libc = ctypes.CDLL(None, use_errno=True)

    def __enter__(self) -> Self:
        self._before = {process.pid for process in self.processes()}
        assert self._libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) == 0
        return self

    def __exit__(self, *_: object) -> None:
        self.wait_empty(10)
        self._libc.prctl(_PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0)

    def processes(self) -> list[Process]:
        """Everything below this process that was not there at first."""
        every: dict[int, Process] = {}
        for entry in os.listdir("/proc"):
            if entry.isdigit() and (process := _read(int(entry))):
                every[process.pid] = process
        below = {os.getpid()}
        grown = True
        while grown:
            more = {p.pid for p in every.values() if p.parent in below} - below
            grown = bool(more)
            below |= more
        mine = below - self._before - {os.getpid()}
        return [every[pid] for pid in sorted(mine) if pid in every]

    def members(self) -> Members:
        """Classify the processes as they are now."""
        found = self.processes()
        self._reap(found)
        by_pid = {process.pid: process for process in found}
        members = Members()
        for process in found:
            if not process.zombie:
                _sort(process, by_pid, members)
        return members

    def _reap(self, found: list[Process]) -> None:
        """Bury the orphans that came to us. A child of our own is waited for by whoever started
        it, well before it is seen here twice."""
        zombies = {p.pid for p in found if p.zombie and p.parent == os.getpid()}
        for pid in zombies & self._zombies:
            with suppress(ChildProcessError):
                os.waitpid(pid, os.WNOHANG)
        self._zombies = zombies

    def wait_empty(self, within_s: float) -> list[Process]:
        """Wait until nobody is left; returns those that are left after all."""
        deadline = time.monotonic() + within_s
        while True:
            self.members()
            left = self.processes()
            if not left or time.monotonic() > deadline:
                return left
            time.sleep(0.1)


def _read(pid: int) -> Process | None:
    try:
        stat = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
        command = Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace")
        status = Path(f"/proc/{pid}/status").read_text(errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return None
    numbers: list[str] = []
    for line in status.splitlines():
        if line.startswith("NSpid:"):
            numbers = line.split()[1:]
    return Process(
        pid=pid,
        parent=int(stat[1]),
        command=tuple(command.split("\0")[:-1]),
        zombie=stat[0] in (b"Z", b"X"),
        in_jail=len(numbers) > 1,
        first_in_jail=len(numbers) > 1 and numbers[-1] == "1",
    )


def _sort(process: Process, by_pid: dict[int, Process], members: Members) -> None:
    command, parent = process.command, by_pid.get(process.parent)
    runs_template = "/run/nsm/template.py" in command
    bubblewrap = bool(command) and command[0].endswith("bwrap")
    if _is_agent(process):
        members.agents.append(process.pid)
    elif parent is not None and _is_agent(parent):
        members.interpreters[process.pid] = parent.pid
    elif _is_supervisor(process):
        if parent is None or not _is_supervisor(parent):  # else about to become something else
            members.supervisors.append(process.pid)
    elif any("forking.helper" in word for word in command) and not process.in_jail:
        members.fork_helpers.append(process.pid)
    elif any(word.endswith("holder.py") for word in command):
        members.holders.append(process.pid)
    elif "nsm.shim" in command:
        members.shims.append(process.pid)
    elif runs_template and not bubblewrap:
        members.templates.append(process.pid)


def _is_supervisor(process: Process) -> bool:
    """Not the launcher, which has the same among its arguments."""
    return process.command[1:4] == ("-P", "-m", "nsmd")


def _is_agent(process: Process) -> bool:
    """The first process of a session: a fork of a template, or an agent in a jail of its own."""
    command = process.command
    ours = any(word in ("/run/nsm/template.py", "/run/nsm/agent.py") for word in command)
    return process.first_in_jail and ours and not command[0].endswith("bwrap")
