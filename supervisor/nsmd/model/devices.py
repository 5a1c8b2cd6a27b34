"""Devices of the host that an environment's user gave it. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence

from nsm.dataclass import dataclass

DEVICE_WORDS = ('"nvidia"', '"nvidia:NUMBER"', '"amd"', '"dri"')
"""Words that `devices` may hold, for people."""

MAX_DEVICES = 64
"""Largest number of these words for one environment."""

LEAST_PROCESS_MB = 4096
"""Least memory of one process where an environment has devices, MiB. Drivers reserve addresses that
they never fill: torch with CUDA takes 1.5 GiB of RLIMIT_DATA, and fails with 1 GiB.
"""

_WORD = re.compile(r"nvidia(?::(?:0|[1-9][0-9]{0,2}))?|amd|dri")


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceNode:
    """A character device that a jail shows.

    Attributes:
        source: its path on the host.
        path: its path in the jail, below /dev.
        number: major and minor number; a driver that is loaded again may have others.
    """

    source: str
    path: str
    number: tuple[int, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class ShownDevices:
    """Devices in the jails of an environment.

    Attributes:
        nodes: sorted by path.
        driver: version of the driver and state of its libraries; differs after an upgrade, so that
            no session is forked from a template that has the older ones.
    """

    nodes: tuple[DeviceNode, ...]
    driver: str = ""


def has_nvidia(shown: ShownDevices | None) -> bool:
    """Return whether there are GPUs among these devices whose use NVIDIA's library can tell."""
    return shown is not None and any(node.path.startswith("/dev/nvidia") for node in shown.nodes)


def why_no_devices(words: Sequence[str]) -> str | None:
    """Why these words name no devices; None if they do."""
    if len(words) > MAX_DEVICES:
        return f"has {len(words)} entries, expected at most {MAX_DEVICES}"
    for word in words:
        if _WORD.fullmatch(word) is None:
            return f"found {word!r:.80}, allowed: {', '.join(DEVICE_WORDS)}"
    kinds = [word.partition(":")[0] for word in words]
    if "nvidia" in words and kinds.count("nvidia") > 1:
        return 'has "nvidia", which is every NVIDIA GPU, and the number of one as well. Remove one'
    return None
