"""Limits of a session and of its processes."""

from __future__ import annotations

import resource

from sandbox.framing import is_whole

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any


REPLY_BYTES = 1024 * 1024

MAX_REPLY_BYTES = 4 * 1024 * 1024
"""A control character takes 6 bytes in JSON: two streams of this size still fit a frame."""

FILE_BYTES = 64 * 1024 * 1024
"""Default cap of the file that holds what a reply has no room for."""

UNDO_BYTES = 256 * 1024 * 1024
"""Default memory of checkpoints."""


RESOURCES = {
    "processes": resource.RLIMIT_NPROC,
    "descriptors": resource.RLIMIT_NOFILE,
    "data_bytes": resource.RLIMIT_DATA,
}


class Limits:
    """Bounds of a session, as `hello` sets them; None leaves what the jail has."""

    def __init__(self, given: Mapping[str, Any] | None = None) -> None:
        """Raise ValueError if a limit is not a whole number above 0."""
        values: dict[str, int] = {}
        for name in ("reply_bytes", "file_bytes", "undo", "undo_bytes", *RESOURCES):
            value = (given or {}).get(name)
            if value is None:
                continue
            if not is_whole(value) or value <= 0:
                raise ValueError(f"limit {name} is {value!r}, expected a whole number above 0")
            values[name] = value
        self.reply_bytes = min(values.get("reply_bytes", REPLY_BYTES), MAX_REPLY_BYTES)
        self.file_bytes = values.get("file_bytes", FILE_BYTES)
        self.undo = values.get("undo", 0)
        self.undo_bytes = values.get("undo_bytes", UNDO_BYTES)
        self.resources = {name: values[name] for name in RESOURCES if name in values}


ULIMIT = {"processes": ("-u", 1), "descriptors": ("-n", 1), "data_bytes": ("-d", 1024)}
"""Options of Bash's `ulimit`, and their units."""

FIXED_LIMITS = {
    # 0 would keep the kernel from writing core files, but not from running the host's program for
    # crashes (core(5)); 1 does both.
    resource.RLIMIT_CORE: 1,
    # The host's user may be allowed more than his share of the processors, as users of audio
    # programs are: code is not.
    resource.RLIMIT_RTPRIO: 0,
    resource.RLIMIT_NICE: 0,
    resource.RLIMIT_MEMLOCK: 64 * 1024,
    resource.RLIMIT_SIGPENDING: 1024,
}
"""Limits of the agent and of all that it starts."""


def set_limits(limits: Mapping[int, int], pid: int = 0) -> None:
    """Set soft and hard resource limits of a process, but none above its present hard limit."""
    for kind, value in limits.items():
        limit = at_most(kind, value, pid)
        resource.prlimit(pid, kind, (limit, limit))


def apply_limits(limits: Mapping[str, int], pid: int = 0) -> None:
    """Set those limits of an interpreter that have a name in `hello`."""
    set_limits({RESOURCES[name]: value for name, value in limits.items()}, pid)


def limits_for_bash(limits: Mapping[str, int]) -> list[str]:
    """Commands with which a shell that this process starts sets these limits, or ends."""
    return [
        f"\\ulimit {option} {at_most(RESOURCES[name], limits[name]) // unit} || \\exit 126"
        for name, (option, unit) in ULIMIT.items()
        if name in limits
    ]


def at_most(kind: int, value: int, pid: int = 0) -> int:
    """A limit, or the hard limit that a process has if that is lower."""
    hard = resource.prlimit(pid, kind)[1]
    return value if hard == resource.RLIM_INFINITY else min(value, hard)
