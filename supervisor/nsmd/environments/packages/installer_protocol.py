"""Protocol between the supervisor and the installer.

The installer's argument is a request, as JSON. Its standard output is the answer; its standard
error has lines for people, and lines with its progress.
"""

from __future__ import annotations

import json
import os
from typing import Any

from nsm.dataclass import dataclass
from nsm.wire.decode import DecodeError, decode
from nsmd.environments.commands.log_text import CommandProgress, lines_of
from nsmd.model.packages import WantedPackages

STDERR = 2

_PREFIX = b"@nsm "


@dataclass(frozen=True, slots=True, kw_only=True)
class InstallRequest:
    """An environment to make.

    Attributes:
        refresh: look for newer versions than its lock has.
        store: directory of environments.
        lock_directories: directories for its lock, the best first.
        search_path: value of PATH.
        jail_uid: user of the jail, if this runs as root.
        hosts: further hosts that a build may reach.
    """

    name: str
    wanted: WantedPackages
    refresh: bool
    store: str
    lock_directories: tuple[str, ...]
    search_path: str
    home: str
    jail_uid: int
    hosts: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Installed:
    """An environment that was made, or was there: its directory, the path of its lock (empty if
    there is none), and a sentence about what did not go as it should.
    """

    path: str
    lock: str
    note: str = ""


def write_line(text: str) -> None:
    """Write a line of the log for people."""
    # A package's own output must not look like ours.
    _write(text.removeprefix(_PREFIX.decode()).encode(errors="replace"))


def write_progress(progress: CommandProgress) -> None:
    """Write the progress for the supervisor."""
    values = {"phase": progress.phase, "activity": progress.activity}
    _write(_PREFIX + json.dumps({**values, "downloaded_bytes": progress.downloaded_bytes}).encode())


def _write(data: bytes) -> None:
    data += b"\n"
    while data:
        data = data[os.write(STDERR, data) :]


class InstallerLogReader:
    """Reader of the installer's log."""

    def __init__(self) -> None:
        self.progress = CommandProgress(phase="resolving")
        self.error = ""

    def take(self, line: bytes) -> list[str]:
        """Read a line. Returns it for people, unless it is progress."""
        if not line.startswith(_PREFIX):
            return lines_of(line.decode(errors="replace"))
        try:
            told: Any = json.loads(line[len(_PREFIX) :])
            self.progress = decode(CommandProgress, told)
        except (ValueError, RecursionError, DecodeError):
            return []
        return []
