"""Values for the limits of a session's group; pure."""

from __future__ import annotations

from nsm.dataclass import dataclass
from nsmd.model.values import JailSpec, SessionLimits

AGENT_MB = 32
"""Memory for the agent, and for what the kernel itself uses for a session's processes."""

SPARE_PROCESS = 1
"""Difference to each process's own limit: the group refuses first, since only the group counts what
it refuses.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupLimits:
    """Limits of one session's group.

    Attributes:
        memory_bytes: limit of all memory, files in its file systems included.
        program_bytes: limit of its processes' memory without those files.
        processes: limit of processes; threads count, too.
        cpu_weight: weight beside other sessions.
    """

    memory_bytes: int
    program_bytes: int
    processes: int
    cpu_weight: int

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
    """Limits that a box asks for.

    Attributes:
        memory_mb: memory of its processes together.
        files_mb: sizes of its file systems in memory together.
        processes: largest number of processes.
        cpu_weight: weight beside sessions and other boxes.
    """

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
    )
