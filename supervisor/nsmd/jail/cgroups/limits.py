"""Values for the limits of a session's group; pure."""

from __future__ import annotations

from dataclasses import dataclass

from nsmd.model.values import JailSpec, SessionLimits

AGENT_MB = 32
"""For the agent, and what the kernel itself takes for a session's processes."""

SPARE_PROCESS = 1
"""The group refuses a process before each process's own limit does, since only the group counts
what it refuses."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupLimits:
    """Limits of one session's group.

    Attributes:
        memory_bytes: of everything, the files in its file systems in memory included.
        program_bytes: of what its processes have without those files.
        processes: threads included, as the kernel counts.
        cpu_weight: beside other sessions.
    """

    memory_bytes: int
    program_bytes: int
    processes: int
    cpu_weight: int

    @property
    def files(self) -> tuple[tuple[str, str, str], ...]:
        """Controller, file, and what to write into it."""
        return (
            ("memory", "memory.max", str(self.memory_bytes)),
            # Else what has no room would be written to disk, for as long as there is some.
            ("memory", "memory.swap.max", "0"),
            # One process goes, not all: the agent is to tell what was lost.
            ("memory", "memory.oom.group", "0"),
            ("pids", "pids.max", str(self.processes)),
            ("cpu", "cpu.weight", str(self.cpu_weight)),
        )


OPTIONAL = frozenset({"memory.swap.max"})
"""Files that a kernel without swap does not have."""


def limits_of(spec: JailSpec, limits: SessionLimits) -> GroupLimits:
    """Compute the limits of a session's group.

    Files in /workspace, /tmp and /dev/shm are memory, and are counted for the group. Each of these
    file systems has a size of its own, at which writing fails; were there no room for them beside
    the programs, whoever writes a large file would have an interpreter killed for it.
    """
    sizes, programs = spec.sizes, spec.environment.memory_mb + AGENT_MB
    all_files = sizes.workspace_mb + sizes.tmp_mb + sizes.shm_mb
    if spec.project is not None and spec.project.mode == "overlay":
        all_files += sizes.overlay_mb
    return GroupLimits(
        memory_bytes=(programs + all_files) << 20,
        program_bytes=programs << 20,
        processes=limits.processes - SPARE_PROCESS,
        cpu_weight=spec.environment.cpu_weight,
    )
