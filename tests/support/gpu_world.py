"""A host with made-up GPUs: its device nodes lead to /dev/null, which any user may open."""

from __future__ import annotations

import os
import platform
from pathlib import Path

from nsmd.environments.devices.nodes import DeviceHost

NVIDIA = ("nvidiactl", "nvidia-uvm", "nvidia-uvm-tools", "nvidia0", "nvidia1")

ABI = {"x86_64": "libc6,x86-64", "aarch64": "libc6,AArch64"}.get(platform.machine(), "libc6")


class GpuWorld:
    """A directory that stands for the host's root directory.

    Attributes:
        closed: paths of devices that the jails' user must not use.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        self.closed: set[str] = set()
        self._cached: list[str] = []

    @property
    def host(self) -> DeviceHost:
        return DeviceHost(root=str(self.root), can_use=self._can_use, home="/home/ada")

    def _can_use(self, path: str) -> bool:
        return path.removeprefix(str(self.root)) not in self.closed

    def path(self, path: str) -> Path:
        """A place below the root, whose directory exists."""
        place = self.root / path.lstrip("/")
        place.parent.mkdir(parents=True, exist_ok=True)
        return place

    def add_devices(self, *names: str, leads_to: str = "/dev/null") -> None:
        """Make device nodes by their names below /dev."""
        for name in names:
            self.path(f"/dev/{name}").symlink_to(leads_to)

    def write(self, path: str, text: str) -> Path:
        """Write a file."""
        place = self.path(path)
        place.write_text(text)
        return place

    def add_driver(self, directory: str, version: str = "580.95.05", *, cached: bool) -> None:
        """Make the driver's libraries, which the loader may know."""
        for name in ("libcuda.so", "libnvidia-ml.so"):
            self.write(f"{directory}/{name}.{version}", f"{name} {version}")
            self.path(f"{directory}/{name}.1").symlink_to(f"{name}.{version}")
        self.write("/proc/driver/nvidia/version", f"NVRM version: Kernel Module  {version}\n")
        if cached:
            self._cached += [
                f"\tlibcuda.so.1 (libc6) => {directory}/32-bit/libcuda.so.1",
                f"\tlibcuda.so.1 ({ABI}) => {directory}/libcuda.so.1",
            ]
        lines = "\n".join([f"{len(self._cached)} libs found in cache", *self._cached])
        self.write("/ldconfig.txt", lines + "\n")
        program = self.write("/sbin/ldconfig", f"#!/bin/sh\ncat {self.root}/ldconfig.txt\n")
        program.chmod(0o755)

    def add_render_node(self, name: str, driver: str, bus: str = "0000:03:00.0") -> None:
        """Make a render node with its description in /sys."""
        self.add_devices(f"dri/{name}")
        there = self.path(f"/sys/devices/pci0000:00/{bus}/drm/{name}/dev")
        there.write_text("1:3\n")
        device = there.parents[2]
        self.path(f"/sys/bus/pci/drivers/{driver}/bind").write_text("")
        if not (device / "driver").is_symlink():
            (device / "driver").symlink_to(f"../../../bus/pci/drivers/{driver}")
            (device / "vendor").write_text("0x1002\n")
        (there.parent / "device").symlink_to(f"../../../{bus}")
        self.path(f"/sys/class/drm/{name}").symlink_to(
            os.path.relpath(there.parent, self.root / "sys/class/drm")
        )


def nvidia_world(root: Path) -> GpuWorld:
    """Two of NVIDIA's GPUs, and a driver outside of /usr, as in many containers."""
    world = GpuWorld(root)
    world.add_devices(*NVIDIA)
    world.add_driver("/opt/nvidia/lib64", cached=True)
    return world
