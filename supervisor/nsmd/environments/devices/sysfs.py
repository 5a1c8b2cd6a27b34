"""The kernel's description of devices, for drivers that read it: those of AMD, and Mesa's."""

from __future__ import annotations

import os
from collections.abc import Sequence

from nsmd.environments.devices.device_host import DeviceHost
from nsmd.environments.devices.nodes import KFD
from nsmd.model.values import DeviceNode, Links, ReadOnlyBind

_TOPOLOGY = "/sys/devices/virtual/kfd"


def described(
    nodes: Sequence[DeviceNode], host: DeviceHost
) -> tuple[tuple[ReadOnlyBind, ...], Links]:
    """Directories of /sys that describe these devices, and the links by which drivers find them.

    libdrm follows /sys/dev/char/MAJOR:MINOR, and ROCm reads /sys/class/kfd. NVIDIA's driver needs
    nothing of /sys.
    """
    directories: dict[str, None] = {}
    links: dict[str, str] = {}
    for node in nodes:
        if node.path == KFD:
            directories[_TOPOLOGY] = None
            links["/sys/class/kfd/kfd"] = f"{_TOPOLOGY}/kfd"
        elif node.path.startswith("/dev/dri/"):
            name = os.path.basename(node.path)
            there = host.followed(f"/sys/class/drm/{name}")
            device = os.path.dirname(os.path.dirname(there))
            if not device.startswith("/sys/devices/"):
                continue  # no sysfs here
            directories[device] = None
            links[f"/sys/class/drm/{name}"] = there
            links[f"/sys/dev/char/{node.number[0]}:{node.number[1]}"] = there
    shown = [path for path in directories if os.path.isdir(host.real(path))]
    binds = tuple(ReadOnlyBind(source=host.real(path), target=path) for path in sorted(shown))
    return binds, tuple(sorted(links.items()))
