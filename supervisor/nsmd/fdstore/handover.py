"""Handover from a supervisor to the program that it becomes (`nsm reload`).

Descriptors stay open across the exec; a memory file describes them, and a variable has its number.
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import MutableMapping
from contextlib import suppress
from typing import Any

from nsm.dataclass import dataclass, field
from nsmd.fdstore.store import Kept

log = logging.getLogger(__name__)

VARIABLE = "NSM_HANDED_OVER"
"""Variable with the number of the descriptor that describes the handover."""

VERSION = 1

MAX_BYTES = 16 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class HandedOver:
    """State of the program that this process was before.

    Attributes:
        listener: the listening socket.
        own: device and inode of its file, if this process removes it at the end; None if it belongs
            to a service manager.
        lock: lock of the supervisor.
        kept: all other descriptors.
        settled: systemd already has all of that.
    """

    listener: int
    own: tuple[int, int] | None
    lock: int
    kept: Kept = field(default_factory=dict[str, list[int]])
    settled: bool = False


def hand_over(handed: HandedOver) -> dict[str, str]:
    """Make the next program of this process inherit all of that.

    Returns:
        Variables for it.

    Raises:
        OSError: there is no descriptor left for the file.
    """
    told = {
        "version": VERSION,
        "pid": os.getpid(),
        "listener": handed.listener,
        "own": handed.own,
        "lock": handed.lock,
        "kept": {name: list(descriptors) for name, descriptors in handed.kept.items()},
        "settled": handed.settled,
    }
    note = os.memfd_create("nsm-handed-over", 0)
    with open(note, "wb", closefd=False) as file:
        file.write(json.dumps(told).encode())
    kept = {fd for fds in handed.kept.values() for fd in fds}
    passed = {0, 1, 2, note, handed.listener, handed.lock, *kept}
    for fd in map(int, os.listdir("/proc/self/fd")):
        with suppress(OSError):  # the directory's own
            os.set_inheritable(fd, fd in passed)
    return {VARIABLE: str(note)}


def take_over(variables: MutableMapping[str, str]) -> HandedOver | None:
    """Read the handover to this process, which no child inherits.

    Args:
        variables: variables of this process; ours is removed.

    Returns:
        None if there is none, if it is for another process, or in another format.
    """
    number = variables.pop(VARIABLE, "")
    if not number.isdigit():
        return None
    try:
        told: dict[str, Any] = json.loads(_content(int(number)))
        if (told["version"], told["pid"]) != (VERSION, os.getpid()):
            raise ValueError(f"version {told['version']}, for process {told['pid']}")  # noqa: TRY301
        handed = HandedOver(
            listener=told["listener"],
            own=tuple(told["own"]) if told["own"] else None,
            lock=told["lock"],
            kept=told["kept"],
            settled=told.get("settled") is True,
        )
        for fd in (
            handed.listener,
            handed.lock,
            *(fd for fds in handed.kept.values() for fd in fds),
        ):
            os.set_inheritable(fd, False)
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        log.warning("the handover of the program before this one is unreadable: %s", error)
        return None
    return handed


def _content(fd: int) -> bytes:
    try:
        return os.pread(fd, MAX_BYTES, 0)
    finally:
        os.close(fd)
