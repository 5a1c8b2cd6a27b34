"""Limits of a box: defaults, and the names by which people set them."""

from __future__ import annotations

import os
from collections.abc import Mapping

from nsm.dataclass import dataclass

BOUNDS: Mapping[str, tuple[int, int]] = {
    "memory_mb": (1, 1024 * 1024),
    "home_mb": (1, 1024 * 1024),
    "tmp_mb": (1, 1024 * 1024),
    "shm_mb": (1, 1024 * 1024),
    "cpu_weight": (1, 10000),
    "processes": (8, 32768),
    "descriptors": (64, 1048576),
}
"""Smallest and largest value of each, as `nsmd.model.settings` has them."""

PROCESSES = 4096
DESCRIPTORS = 65536
CPU_WEIGHT = 100

LEAST_MB = 1024
"""Default size of a file system on a small machine: package managers unpack there."""

INODES_PER_MB = 128
"""Files and directories for each MiB of a file system in memory, as sessions have them."""

LEAST_INODES = 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class BoxLimits:
    """Limits of one box.

    Attributes:
        memory_mb: memory of its processes together.
        home_mb: size of HOME, which is in memory.
        tmp_mb: size of `/tmp`, and of `/var/tmp`.
        shm_mb: size of `/dev/shm`.
        cpu_weight: weight beside sessions and other boxes, where there are control groups.
        processes: largest number of processes and threads.
        descriptors: largest number of descriptors of one process.
    """

    memory_mb: int = 12288
    home_mb: int = 2048
    tmp_mb: int = 2048
    shm_mb: int = 2048
    cpu_weight: int = CPU_WEIGHT
    processes: int = PROCESSES
    descriptors: int = DESCRIPTORS

    @property
    def together(self) -> Mapping[str, int]:
        """Limits of all processes together, which the supervisor enforces."""
        return {
            "memory_mb": self.memory_mb,
            "files_mb": self.home_mb + 2 * self.tmp_mb + self.shm_mb,
            "processes": self.processes,
            "cpu_weight": self.cpu_weight,
        }


def limits(given: Mapping[str, int | None], machine_mb: int | None = None) -> BoxLimits:
    """Complete the limits that are given.

    An agent with builds, language servers and tests must work, and the machine beside it: so three
    quarters of the machine's memory are the programs', and an eighth is each file system's.

    Args:
        given: by name; None for the default.
        machine_mb: memory of the machine; None to ask it.
    """
    machine_mb = _machine_mb() if machine_mb is None else machine_mb
    files_mb = max(LEAST_MB, machine_mb // 8)
    defaults = {
        "memory_mb": max(LEAST_MB, machine_mb * 3 // 4),
        "home_mb": files_mb,
        "tmp_mb": files_mb,
        "shm_mb": files_mb,
    }
    return BoxLimits(
        **defaults | {name: value for name, value in given.items() if value is not None}
    )


def _machine_mb() -> int:
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") >> 20
