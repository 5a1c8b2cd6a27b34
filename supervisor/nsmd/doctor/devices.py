"""Doctor: devices of environments whose user gave them some."""

from __future__ import annotations

import os
from collections.abc import Iterator

import trio

from nsm.checks import HostCheck, ok, warn
from nsmd.environments.devices.device_host import DeviceHost
from nsmd.environments.devices.equipment import find_equipment
from nsmd.environments.devices.nodes import CONTROL
from nsmd.host.nvml import GpuReader
from nsmd.host.package_manager import install_command
from nsmd.model.settings import Settings
from nsmd.model.values import has_nvidia

_PAGE = "docs/how-to/gpus.md"

_COMPILERS = ("cc", "gcc", "clang")


def check_devices(
    settings: Settings, host: DeviceHost, reader: GpuReader | None = None
) -> Iterator[HostCheck]:
    """Make a row for each environment with devices, and for what its code may need besides.

    Args:
        reader: reads GPUs; None for NVIDIA's library.
    """
    wanted = {name: each.devices for name, each in settings.environments.items() if each.devices}
    if not wanted:
        if host.device(CONTROL) is not None:
            yield ok(f"an NVIDIA GPU is here, and no environment has it ({_PAGE})")
        return
    usable = False
    for name, words in wanted.items():
        equipment = find_equipment(words, host)
        asked = ", ".join(words)
        if equipment.shown is None:
            yield warn(f"{asked}: {equipment.problem}", of=name)
            continue
        usable = usable or has_nvidia(equipment.shown)
        nodes = ", ".join(node.path for node in equipment.shown.nodes)
        libraries = equipment.libraries
        where = f"; the driver's libraries are in {libraries.directory}" if libraries else ""
        yield ok(f"{asked}: {nodes}{where}", of=name)
    if usable:
        yield from _read(reader or GpuReader())
        yield _check_compiler(host)


def _read(reader: GpuReader) -> Iterator[HostCheck]:
    reading = trio.run(reader.read)
    if reading.problem:
        yield warn(f"memory and use are not shown: {reading.problem}", of="use")
    for gpu in reading.gpus:
        name = f"/dev/nvidia{gpu.number}"
        if gpu.problem:
            yield warn(f"{name}: {gpu.problem}", of="use")
        else:
            size_mb, used_mb = (gpu.memory_bytes or 0) >> 20, (gpu.used_bytes or 0) >> 20
            yield ok(f"{name}: {gpu.name}, {used_mb} of {size_mb} MiB in use", of="use")


def _check_compiler(host: DeviceHost) -> HostCheck:
    for name in _COMPILERS:
        if os.access(host.real(path := f"/usr/bin/{name}"), os.X_OK):
            return ok(f"{path}, for `torch.compile`", of="compiler")
    return ok(
        "none in /usr/bin, so `torch.compile` does not work",
        f"If you need it: {install_command('gcc')}, and the headers of the environment's Python",
        of="compiler",
    )
