"""A directory that plays a host."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from nsmd.doctor.system import Host

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from nsm.checks import HostCheck

MOUNTINFO = "30 1 0:26 / {} rw,nosuid shared:9 - {} none rw"


class World:
    """Files of a host that looks well, to be spoilt."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.host = Host(
            root=str(root),
            home="/home/me",
            cwd="/home/me/work",
            uid=1000,
            user="me",
            search_path="/nowhere",
            shim="/opt/nsm/bin/nsm-mcp",
            version="1.2.3",
            socket="/run/user/1000/nsm/control.sock",
            lock="/run/user/1000/nsm/supervisor.lock",
            state="/home/me/.local/state/nsm",
            tools="/home/me/.config/nsm/tools",
        )
        self.file("/proc/self/ns/user")
        self.file("/proc/self/status", "Name:\tx\nSeccomp:\t0\n")
        self.file("/proc/meminfo", "MemTotal: 8000000 kB\nMemAvailable:    4000000 kB\n")
        self.file("/proc/pressure/memory", "some avg10=0.00\n")
        self.file("/home/me/work/readme")
        self.program("/opt/nsm/bin/nsm-mcp")
        self.mounts(("/", "ext4"), ("/sys/fs/cgroup", "cgroup2"))

    def file(self, path: str, text: str = "") -> Path:
        real = self.root / path.lstrip("/")
        real.parent.mkdir(parents=True, exist_ok=True)
        real.write_text(text)
        return real

    def program(self, path: str) -> None:
        self.file(path, "#!/bin/sh\n").chmod(0o755)

    def mounts(self, *mounts: tuple[str, str]) -> None:
        lines = [MOUNTINFO.format(point, kind) for point, kind in mounts]
        self.file("/proc/self/mountinfo", "\n".join(lines) + "\n")

    def but(self, **changes: Any) -> Host:
        return replace(self.host, **changes)


def named(checks: Iterable[HostCheck], name: str) -> HostCheck:
    """The only row of that name."""
    (check,) = [check for check in checks if check.name == name]
    return check
