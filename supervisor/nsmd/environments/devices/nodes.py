"""Device nodes of GPUs."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterator, Sequence

from nsmd.environments.devices.device_host import DeviceError, DeviceHost
from nsmd.model.values import DeviceNode

CONTROL, UVM = "/dev/nvidiactl", "/dev/nvidia-uvm"
"""Without the second, CUDA says that it is not available, and programs silently use the processor.
"""

WSL = "/dev/dxg"
"""The GPUs of Windows, whatever their maker, in the Windows Subsystem for Linux."""

KFD = "/dev/kfd"
"""The compute interface of all of AMD's GPUs."""

_OPTIONAL = "/dev/nvidia-uvm-tools"
"""Device for profilers."""

CAPABILITIES = "/dev/nvidia-caps"
"""Rights to parts of a GPU that is divided (Multi-Instance GPU)."""

_GPU = re.compile(r"nvidia([0-9]+)")
_RENDER = re.compile(r"renderD[0-9]+")
_MINOR = re.compile(r"DeviceFileMinor:\s*([0-9]+)")

_MAKE_NODES = "`sudo nvidia-modprobe -c 0 -u` makes the devices; at boot, nvidia-persistenced does"


def find_nodes(words: Sequence[str], host: DeviceHost) -> tuple[DeviceNode, ...]:
    """Find the device nodes that an environment's `devices` mean, sorted by path.

    Raises:
        DeviceError: one is missing, or the jails' user cannot use it.
    """
    paths: set[str] = set()
    kinds = {word.partition(":")[0] for word in words}
    if "nvidia" in kinds:
        paths |= _nvidia([word for word in words if word.startswith("nvidia")], host)
    if "amd" in kinds:
        paths |= _amd(host)
    if "dri" in kinds:
        paths |= _render_nodes(host)
    return tuple(_node(path, host) for path in sorted(paths))


def is_wsl(host: DeviceHost) -> bool:
    """Return whether GPUs are reached through Windows here."""
    return host.device(WSL) is not None and host.device(CONTROL) is None


def _node(path: str, host: DeviceHost) -> DeviceNode:
    found = host.device(path)
    if found is None:
        raise DeviceError(f"{path} is gone; `nsm env` looks again")
    return DeviceNode(
        source=host.real(path),
        path=path,
        number=(os.major(found.st_rdev), os.minor(found.st_rdev)),
    )


def _nvidia(words: Sequence[str], host: DeviceHost) -> set[str]:
    if is_wsl(host):
        if words != ["nvidia"]:
            raise DeviceError(f'{WSL} has all GPUs of Windows: ask for "nvidia", without a number')
        return {_usable(WSL, host)}
    if host.device(CONTROL) is None:
        if version := host.read("/proc/driver/nvidia/version"):
            about = version.splitlines()[0].strip()
            raise DeviceError(
                f"the driver is loaded ({about:.80}), but there is no {CONTROL}: {_MAKE_NODES}"
            )
        raise DeviceError(
            f"there is no {CONTROL}: NVIDIA's driver is not installed, or its module is not loaded "
            "(`sudo modprobe nvidia`). In a container, start it with its GPUs (`--gpus all`)"
        )
    numbers = [found[1] for name in host.names("/dev") if (found := _GPU.fullmatch(name))]
    numbers = [number for number in numbers if host.device(f"/dev/nvidia{number}")]
    if not numbers:
        raise DeviceError(f"there is {CONTROL}, but no /dev/nvidia0: {_MAKE_NODES}")
    if words != ["nvidia"]:
        wanted = [word.partition(":")[2] for word in words]
        if missing := [number for number in wanted if number not in numbers]:
            there = ", ".join(f"nvidia:{number}" for number in sorted(numbers, key=int))
            raise DeviceError(f"there is no /dev/nvidia{missing[0]}; there is {there}")
        numbers = wanted
    if host.device(UVM) is None:
        raise DeviceError(
            f"there is no {UVM}, and without it CUDA silently uses the processor: {_MAKE_NODES}"
        )
    paths = {_usable(path, host) for path in (CONTROL, UVM)}
    paths |= {_usable(f"/dev/nvidia{number}", host) for number in numbers}
    if host.device(_OPTIONAL) is not None and host.can_use(host.real(_OPTIONAL)):
        paths.add(_OPTIONAL)
    return paths | set(_capabilities(numbers, host))


def _capabilities(numbers: Sequence[str], host: DeviceHost) -> Iterator[str]:
    """Nodes of parts of these GPUs that the jails' user may read. The others are for those who
    divide GPUs.
    """
    minors: set[str] = set()
    for number in numbers:
        top = host.real(f"/proc/driver/nvidia/capabilities/gpu{number}")
        for folder, _, files in os.walk(top):
            if "access" in files:
                inside = os.path.join(folder, "access").removeprefix(host.real("/"))
                minors.update(_MINOR.findall(host.read("/" + inside.lstrip("/"))))
    for minor in sorted(minors):
        path = f"{CAPABILITIES}/nvidia-cap{minor}"
        found = host.device(path)
        if found is not None and found.st_mode & stat.S_IROTH:
            yield path


def _amd(host: DeviceHost) -> set[str]:
    if host.device(KFD) is None:
        raise DeviceError(
            f"there is no {KFD}: the module amdgpu is not loaded, or its GPU cannot compute"
        )
    nodes = [path for path in _all_render_nodes(host) if _driver_of(path, host) == "amdgpu"]
    if not nodes:
        raise DeviceError(f"there is {KFD}, but no /dev/dri/renderD* of the module amdgpu")
    return {_usable(path, host) for path in (KFD, *nodes)}


def _render_nodes(host: DeviceHost) -> set[str]:
    nodes = _all_render_nodes(host)
    if not nodes:
        raise DeviceError("there is no /dev/dri/renderD*: no driver of a GPU is loaded")
    return {_usable(path, host) for path in nodes}


def _all_render_nodes(host: DeviceHost) -> list[str]:
    paths = [f"/dev/dri/{name}" for name in host.names("/dev/dri") if _RENDER.fullmatch(name)]
    return [path for path in paths if host.device(path) is not None]


def _driver_of(path: str, host: DeviceHost) -> str:
    link = f"/sys/class/drm/{os.path.basename(path)}/device/driver"
    return os.path.basename(host.followed(link))


def _usable(path: str, host: DeviceHost) -> str:
    real = host.real(path)
    if not host.can_use(real):
        found = os.stat(real)
        mode = stat.S_IMODE(found.st_mode)
        raise DeviceError(
            f"{path} (mode {mode:04o}, owner {found.st_uid}, group {found.st_gid}) is closed to "
            f"{host.jail_user}: join its group (`sudo usermod -aG GROUP USER`, then log in again), "
            "or have udev open it"
        )
    return path
