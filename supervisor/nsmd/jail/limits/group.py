"""One session's control group: its limits, its counters, its processes, its processor share."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Mapping
from contextlib import suppress

import trio

from nsm.dataclass import dataclass
from nsmd.host.processes import tree_of
from nsmd.jail.limits import tree
from nsmd.jail.limits.tree import CONTROLLERS, GroupTree, NoGroupsError, directory_of
from nsmd.model.values import JailSpec, SessionLimits

AGENT_MB = 32
"""Memory for the agent, and for what the kernel itself uses for a session's processes."""

SPARE_PROCESS = 1
"""Difference to each process's own limit: the group refuses first, since only the group counts what
it refuses.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupLimits:
    """Limits of the group of one session or box: of all memory, files in its file systems included;
    of its processes' memory without those files; of processes and threads together; and its weight
    beside others.

    A process of a box that the watchdog ends gets `box_notice` on its standard error; it is empty
    for sessions.
    """

    memory_bytes: int
    program_bytes: int
    processes: int
    cpu_weight: int
    box_notice: str = ""

    @property
    def files(self) -> tuple[tuple[str, str, str], ...]:
        """Controller, file, and text to write into it."""
        return (
            ("memory", "memory.max", str(self.memory_bytes)),
            # Otherwise memory would be swapped to disk, for as long as there is room.
            ("memory", "memory.swap.max", "0"),
            # One process is killed, not all: the agent has to say what was lost.
            ("memory", "memory.oom.group", "0"),
            ("pids", "pids.max", str(self.processes)),
            ("cpu", "cpu.weight", str(self.cpu_weight)),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class BoxBounds:
    """Limits that a box asks for; `files_mb` is for its file systems in memory together."""

    memory_mb: int
    files_mb: int
    processes: int
    cpu_weight: int


OPTIONAL = frozenset({"memory.swap.max"})
"""Files that a kernel without swap does not have."""


def limits_of(spec: JailSpec, limits: SessionLimits) -> GroupLimits:
    """Compute the limits of a session's group.

    Files in /workspace, /tmp and /dev/shm are in memory, and count for the group. Each of these
    file systems has a size of its own, at which writing fails. Without room for them beside the
    programs, writing a large file would kill an interpreter.
    """
    sizes, programs = spec.sizes, spec.environment.memory_mb + AGENT_MB
    all_files = sizes.workspace_mb + sizes.tmp_mb + sizes.shm_mb
    if spec.project is not None and spec.project.mode == "overlay":
        all_files += sizes.overlay_mb
    if (image := spec.environment.image) is not None and image.writable:
        all_files += sizes.overlay_mb
    return GroupLimits(
        memory_bytes=(programs + all_files) << 20,
        program_bytes=programs << 20,
        processes=limits.processes - SPARE_PROCESS,
        cpu_weight=spec.environment.cpu_weight,
    )


def limits_of_box(bounds: BoxBounds) -> GroupLimits:
    """Compute the limits of a box's group."""
    programs = bounds.memory_mb + AGENT_MB
    return GroupLimits(
        memory_bytes=(programs + bounds.files_mb) << 20,
        program_bytes=programs << 20,
        processes=bounds.processes - SPARE_PROCESS,
        cpu_weight=bounds.cpu_weight,
        box_notice="\nnsm: this process was ended: the box had more than its "
        f"{bounds.memory_mb} MiB of memory ([box] memory_mb, `nsm box --limit memory_mb=...`)\n",
    )


MOST_ROUNDS = 32
"""Rounds of looking for processes that were started while others were moved: an agent that has just
begun to speak starts one interpreter.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Counted:
    """Kernel's counts since a group was made: processes that were killed because it had no memory
    left, and of processes and threads that were not started because there were too many.
    """

    kills: int = 0
    refused: int = 0


class Group:
    """Control group of one session. Its methods block for some 100 us each. It `holds` the
    controllers whose limits were read back as they were written; `lacking` says which were not, for
    people.
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
    def new(cls, groups: GroupTree, name: str, limits: GroupLimits) -> Group:
        """Make a group for a session, or raise OSError."""
        return cls(groups.make(name), limits, controllers=groups.controllers, remove=groups.remove)

    @classmethod
    def existing(
        cls, directory: str, pid: int, limits: GroupLimits, remove: Callable[[str], None]
    ) -> Group:
        """Use the group of a session that an earlier supervisor started, in any tree. Raises
        `OSError` if it is gone, or the jail's PID 1 is not in it.
        """
        if str(pid) not in tree.read_file(directory, "cgroup.procs").split():
            raise OSError(0, "the session is not in its control group any more")
        there = tree.read_words(directory, "cgroup.controllers") & set(CONTROLLERS)
        return cls(directory, limits, controllers=there, remove=remove)

    def __repr__(self) -> str:
        return f"<Group {self.directory}>"

    def set(self, file: str, text: str) -> str | None:
        """Write a limit, and read it back. Returns why it does not apply; None if it does."""
        try:
            tree.write_file(self.directory, file, text)
            found = tree.read_file(self.directory, file).strip()
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
        Raises `OSError` if the kernel refuses, or PID 1 is gone.

        Processes that a moved process starts are in the group from their first instant.
        """
        tree.write_file(self.directory, "cgroup.procs", str(pid))
        moved = {pid}
        for _ in range(MOST_ROUNDS):
            new = set(tree_of(pid)) - moved
            if not new:
                return
            for each in new:
                with suppress(ProcessLookupError):  # it has ended
                    tree.write_file(self.directory, "cgroup.procs", str(each))
            moved |= new
        raise OSError(0, "its processes do not hold still")

    def settle(self, pid: int) -> None:
        """Move all of a jail, and nothing else, into the group that it was started in, or raise as
        `adopt`.
        """
        there, jail = set(self.pids()), set(tree_of(pid))
        if not jail <= there:
            self.adopt(pid)
        # The process that made the jail waits for its end, and must not count for the session.
        for each in there - jail:
            with suppress(NoGroupsError, OSError):
                tree.write_file(directory_of(os.getpid()), "cgroup.procs", str(each))

    def entry(self) -> int:
        """Open a descriptor that moves the process whose id is written to it; the caller closes it.
        Raises OSError if the group is gone.
        """
        return os.open(f"{self.directory}/cgroup.procs", os.O_WRONLY | os.O_CLOEXEC)

    def counted(self) -> Counted:
        return Counted(
            kills=tree.read_counters(self.directory, "memory.events").get("oom_kill", 0),
            refused=tree.read_counters(self.directory, "pids.events").get("max", 0),
        )

    def peak_bytes(self) -> int | None:
        """The most memory that it has had; None if the kernel does not tell (before 5.19)."""
        return tree.read_number(self.directory, "memory.peak")

    def memory_bytes(self) -> int | None:
        """Memory that it uses, files in its file systems included; None if it is gone."""
        return tree.read_number(self.directory, "memory.current")

    def program_bytes(self) -> int | None:
        """Memory of its processes, without files in memory."""
        current = self.memory_bytes()
        if current is None:
            return None
        return max(0, current - tree.read_counters(self.directory, "memory.stat").get("file", 0))

    def pids(self) -> list[int]:
        """Process ids of the group, on the host."""
        try:
            return [int(pid) for pid in tree.read_file(self.directory, "cgroup.procs").split()]
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


log = logging.getLogger(__name__)

PART = 20
"""Divisor of a session's weight while it computes for long.

Measured beside ten attackers on an emulated machine with two processors, the 95th percentile of
short calls was, in times of that without attackers: 3.0 with their full weight, 1.7 with a fifth,
1.5 with a twentieth, 1.9 with a hundredth, 2.4 with `cpu.idle`. On one processor less was better,
but a session that computes must make progress, too.
"""

AT_REST = 2
"""Processes of a session that runs nothing: the agent, and one interpreter."""

_FILE = "cpu.weight"


class Share:
    """A session's share of the processor: it gets less while it computes for long.

    The kernel shares equally. So beside ten sessions that compute, an eleventh that gets a request
    every second would have to wait like each of them. A session that computes for long gets less
    than others that do not: it uses what is left, and the others notice little of it. If all
    compute for long, all have the same fraction, and the configured weights apply between them.

    An execution shorter than one look of the watchdog never pays, and an earlier execution never
    reduces a later one: each begins with the whole share. A change takes a write and a read, some
    20 us, and does not wait.
    """

    __slots__ = ("_behind", "_full", "_group", "_low", "_seen", "lowered")

    def __init__(self, group: Group) -> None:
        weight = group.limits.cpu_weight
        self._group = group
        self._full, self._low = weight, max(1, weight // PART)
        self._seen = False
        self._behind = False
        self.lowered = False

    def __repr__(self) -> str:
        return f"<Share {self._low if self.lowered else self._full} of {self._group.directory}>"

    def begun(self) -> None:
        """Note that an execution begins. Processes that were left behind before are older."""
        self._seen = self._behind
        if self.lowered:
            self._restore()

    def ended(self) -> None:
        """Note that the execution ended."""
        if self.lowered and not self._behind:
            self._restore()

    def looked(self, *, runs: bool, processes: int) -> None:
        """Note a look of the watchdog: work that it sees twice counts as long."""
        self._behind = processes > AT_REST
        if not runs and not self._behind:
            self._seen = False
            if self.lowered:
                self._restore()
        elif not self._seen:
            self._seen = True
        elif not self.lowered:
            self._lower()

    def now(self) -> int | None:
        """The present weight in the kernel; None if the group is gone."""
        return tree.read_number(self._group.directory, _FILE)

    def _lower(self) -> None:
        # Also if the kernel refuses, so that it is not asked again at each look.
        self.lowered = True
        self._set(self._low)

    def _restore(self) -> None:
        self.lowered = False
        self._set(self._full)

    def _set(self, weight: int) -> None:
        if "cpu" not in self._group.holds:
            return
        if why := self._group.set(_FILE, str(weight)):
            log.warning("%r: %s: %s", self._group, _FILE, why)
