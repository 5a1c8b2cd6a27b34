"""One session's control group: made, limited and read back; its counters; its processes."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from contextlib import suppress

import trio

from nsm.dataclass import dataclass
from nsmd.host.processes import tree_of
from nsmd.jail.cgroups import files
from nsmd.jail.cgroups.discovery import CONTROLLERS, NoGroupsError, directory_of
from nsmd.jail.cgroups.limits import OPTIONAL, GroupLimits
from nsmd.jail.cgroups.tree import GroupTree

MOST_ROUNDS = 32
"""Rounds of looking for processes that were started while others were moved: an agent that has just
begun to speak starts one interpreter.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Counted:
    """Kernel's counts for a group since it was made.

    Attributes:
        kills: processes that were killed because the group had no memory left.
        refused: processes and threads that were not started because there were too many.
    """

    kills: int = 0
    refused: int = 0


class Group:
    """Control group of one session. Its methods block for some 100 us each.

    Args:
        directory: directory of the group.
        limits: its limits.
        controllers: controllers that it has.
        remove: removes a directory whose processes have ended.

    Attributes:
        holds: controllers whose limits were read back as they were written.
        lacking: limits that were not, for people.
    """

    def __init__(
        self,
        directory: str,
        limits: GroupLimits,
        *,
        controllers: frozenset[str],
        remove: Callable[[str], None],
    ) -> None:
        self._remove = remove
        self.limits = limits
        self.directory = directory
        self.holds = controllers
        lacking: list[str] = []
        for controller, file, text in limits.files:
            if controller in controllers and (why := self.set(file, text)):
                lacking.append(f"{file}: {why}")
                self.holds -= {controller}
        self.lacking = "; ".join(lacking)

    @classmethod
    def new(cls, tree: GroupTree, name: str, limits: GroupLimits) -> Group:
        """Make a group.

        Args:
            tree: tree for it.
            name: name of the session.

        Raises:
            OSError: it cannot be made.
        """
        return cls(tree.make(name), limits, controllers=tree.controllers, remove=tree.remove)

    @classmethod
    def existing(
        cls, directory: str, pid: int, limits: GroupLimits, remove: Callable[[str], None]
    ) -> Group:
        """Use the group of a session that an earlier supervisor started, in any tree.

        Args:
            pid: process id of the jail's PID 1, which is in it.
            remove: removes a directory whose processes have ended.

        Raises:
            OSError: it is gone, or the jail is not in it.
        """
        if str(pid) not in files.read(directory, "cgroup.procs").split():
            raise OSError(0, "the session is not in its control group any more")
        there = files.words(directory, "cgroup.controllers") & set(CONTROLLERS)
        return cls(directory, limits, controllers=there, remove=remove)

    def __repr__(self) -> str:
        return f"<Group {self.directory}>"

    def set(self, file: str, text: str) -> str | None:
        """Write a limit, and read it back.

        Returns:
            Why the limit does not apply; None if it does.
        """
        try:
            files.write(self.directory, file, text)
            found = files.read(self.directory, file).strip()
        except FileNotFoundError:
            return None if file in OPTIONAL else "the kernel has no such file"
        except OSError as error:
            return error.strerror or "error"
        if found == text:
            return None
        # Memory is counted in pages: the kernel rounds down.
        if file == "memory.max" and found.isdigit() and 0 <= int(text) - int(found) < 65536:
            return None
        return f"{text} was written, {found} was read"

    def adopt(self, pid: int) -> None:
        """Move a jail into the group: its PID 1 and all below it, which must run no code yet.

        Processes that a moved process starts are in the group from their first instant.

        Raises:
            OSError: the kernel refuses.
            ProcessLookupError: PID 1 is gone.
        """
        files.write(self.directory, "cgroup.procs", str(pid))
        moved = {pid}
        for _ in range(MOST_ROUNDS):
            new = set(tree_of(pid)) - moved
            if not new:
                return
            for each in new:
                with suppress(ProcessLookupError):  # it has ended
                    files.write(self.directory, "cgroup.procs", str(each))
            moved |= new
        raise OSError(0, "its processes do not hold still")

    def settle(self, pid: int) -> None:
        """Move all of a jail, and nothing else, into the group that it was started in.

        Args:
            pid: process id of the jail's PID 1.

        Raises:
            OSError: as `adopt`.
        """
        there, jail = set(self.pids()), set(tree_of(pid))
        if not jail <= there:
            self.adopt(pid)
        # The process that made the jail waits for its end, and must not count for the session.
        for each in there - jail:
            with suppress(NoGroupsError, OSError):
                files.write(directory_of(os.getpid()), "cgroup.procs", str(each))

    def entry(self) -> int:
        """Open a descriptor that moves the process whose id is written to it; the caller closes it.

        Raises:
            OSError: the group is gone.
        """
        return os.open(f"{self.directory}/cgroup.procs", os.O_WRONLY | os.O_CLOEXEC)

    def counted(self) -> Counted:
        """Read the counts."""
        return Counted(
            kills=files.counters(self.directory, "memory.events").get("oom_kill", 0),
            refused=files.counters(self.directory, "pids.events").get("max", 0),
        )

    def peak_bytes(self) -> int | None:
        """The most memory that it has had; None if the kernel does not tell (before 5.19)."""
        return files.number(self.directory, "memory.peak")

    def memory_bytes(self) -> int | None:
        """Memory that it uses, files in its file systems included; None if it is gone."""
        return files.number(self.directory, "memory.current")

    def program_bytes(self) -> int | None:
        """Memory of its processes, without files in memory."""
        current = self.memory_bytes()
        if current is None:
            return None
        return max(0, current - files.counters(self.directory, "memory.stat").get("file", 0))

    def pids(self) -> list[int]:
        """Process ids of the group, on the host."""
        try:
            return [int(pid) for pid in files.read(self.directory, "cgroup.procs").split()]
        except OSError:
            return []

    def remove(self) -> None:
        """Remove it, now that its processes have ended."""
        self._remove(self.directory)


async def memory_of(groups: Mapping[str, Group]) -> Mapping[str, int]:
    """Read the memory of several groups, by the same names; groups that are gone are left out."""
    if not groups:
        return {}

    def read() -> Mapping[str, int]:
        found = {name: group.memory_bytes() for name, group in groups.items()}
        return {name: size for name, size in found.items() if size is not None}

    return await trio.to_thread.run_sync(read)
