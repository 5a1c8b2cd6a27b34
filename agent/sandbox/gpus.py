"""GPUs that a process uses. Their state belongs to one process: no fork and no copy has it."""

from __future__ import annotations

import contextlib
import os

GPU_PATHS = ("/dev/nvidia", "/dev/dri/", "/dev/kfd", "/dev/dxg")
"""Beginnings of the paths of GPUs in jails."""


def gpu_of(pid: int | str) -> str:
    """Path of a GPU that a process has open or in its memory; empty if it uses none.

    A context of CUDA, ROCm or Vulkan keeps at least one device open.

    Args:
        pid: its process id, or ``self``.
    """
    for name in os.listdir(f"/proc/{pid}/fd"):
        with contextlib.suppress(FileNotFoundError):  # of the listing itself
            path = os.readlink(f"/proc/{pid}/fd/{name}")
            if path.startswith(GPU_PATHS):
                return path
    with open(f"/proc/{pid}/maps", encoding="utf-8", errors="replace") as file:
        for line in file:
            _, _, _, _, _, *mapped = line.rstrip("\n").split(None, 5)
            if mapped and mapped[0].startswith(GPU_PATHS):
                return mapped[0]
    return ""
