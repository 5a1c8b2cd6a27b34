"""Write access of a client to files, by any path that names them.

An agent in a box writes to its working directory. A program that lies there, or whose path leads
through it, could be the agent's own, run outside of the box. The same directory may be mounted
elsewhere, and a file may have a second name. So places are compared by their position in their file
system. Blocks.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Sequence
from contextlib import suppress
from typing import NamedTuple

from nsmd.host.paths import is_within

_ESCAPED = re.compile(r"\\([0-7]{3})")


class _Location(NamedTuple):
    """Position of a file.

    Attributes:
        file_system: major and minor number of its device.
        path: path from the root of that file system, wherever it is mounted.
    """

    file_system: str
    path: str


class WriteAccess:
    """Write access of a client to files, by any path.

    Args:
        writable: absolute directories and files. Missing ones are compared by name alone.
    """

    def __init__(self, writable: Sequence[str]) -> None:
        self._paths = {os.path.normpath(path) for path in writable}
        self._paths |= {os.path.realpath(path) for path in writable}
        self._mounts = _mounts() if writable else {}
        self._locations: set[_Location] = set()
        for path in self._paths:
            with suppress(OSError):
                fd = os.open(path, os.O_PATH | os.O_CLOEXEC)
                try:
                    location = self._location(os.path.realpath(path), fd)
                finally:
                    os.close(fd)
                if location is not None:
                    self._locations.add(location)

    def __repr__(self) -> str:
        return f"<WriteAccess to {sorted(self._paths)}>"

    def why_within(self, part: str, status: os.stat_result, fd: int) -> str | None:
        """Why a file is within reach, as a clause; None if it is not.

        Args:
            part: absolute path, with no links in its directories.
            status, fd: its status, and a descriptor of it.
        """
        if not self._paths:
            return None
        if any(is_within(part, path) for path in self._paths):
            return f"{part} lies where the client that asks can write"
        location = self._location(part, fd)
        if location is not None and any(
            location.file_system == there.file_system and is_within(location.path, there.path)
            for there in self._locations
        ):
            return f"{part} is mounted from where the client that asks can write"
        if stat.S_ISREG(status.st_mode) and status.st_nlink > 1 and status.st_uid == _writer():
            return f"{part} has {status.st_nlink} names (hard links), and the client may have one"
        return None

    def _location(self, part: str, fd: int) -> _Location | None:
        mount = self._mounts.get(_mount_id(fd))
        if mount is None:
            return None
        inside = os.path.relpath(part, mount.at) if is_within(part, mount.at) else "."
        return _Location(mount.file_system, os.path.normpath(os.path.join(mount.root, inside)))


class _Mount(NamedTuple):
    """A line of `mountinfo`.

    Attributes:
        file_system: major and minor number of its device.
        root: directory of that file system that is mounted.
        at: mount point.
    """

    file_system: str
    root: str
    at: str


def _mounts() -> dict[int, _Mount]:
    """Mounts by id, proc_pid_mountinfo(5); empty if they cannot be read."""
    found: dict[int, _Mount] = {}
    with suppress(OSError), open("/proc/self/mountinfo", "rb") as file:
        for line in file:
            number, _, file_system, root, at, *_ = os.fsdecode(line).split(" ")
            found[int(number)] = _Mount(file_system, _plain(root), _plain(at))
    return found


def _mount_id(fd: int) -> int:
    with suppress(OSError), open(f"/proc/self/fdinfo/{fd}", encoding="ascii") as file:
        for line in file:
            if line.startswith("mnt_id:"):
                return int(line.partition(":")[2])
    return -1


def _plain(escaped: str) -> str:
    """Unescape a path: blanks and backslashes are octal numbers there."""
    return _ESCAPED.sub(lambda found: chr(int(found[1], 8)), escaped)


def _writer() -> int:
    """The host user of code in boxes: it can write no file of another user. Root has no boxes, and
    too many files with several names.
    """
    return os.geteuid() or -1
