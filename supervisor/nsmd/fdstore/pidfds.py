"""Descriptors of processes, among others."""

from __future__ import annotations

import select


def pid_of(descriptor: int) -> int | None:
    """The process that a descriptor means, as it is numbered here: -1 if it is gone, 0 if it is in
    no namespace of ours; None if the descriptor is of something else (proc_pid_fdinfo(5))."""
    try:
        with open(f"/proc/self/fdinfo/{descriptor}", encoding="ascii") as file:
            for line in file:
                name, _, value = line.partition(":")
                if name == "Pid":
                    return int(value)
    except (OSError, ValueError):
        pass
    return None


def has_ended(pidfd: int) -> bool:
    """Return whether that process is gone."""
    poll = select.poll()
    poll.register(pidfd, select.POLLIN)
    return bool(poll.poll(0))
