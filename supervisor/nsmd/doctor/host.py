"""The checked host: the real one, or a directory that stands for one in tests."""

from __future__ import annotations

import os
import pwd
import shutil
import sys
from collections.abc import Mapping

from nsm import paths
from nsm._version import program_version
from nsm.dataclass import dataclass, field

MAX_BYTES = 64 * 1024 * 1024
"""Largest file to read: clients keep their history beside their entries."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Host:
    """Paths and facts of the checked host.

    Attributes:
        root: the host's root directory; other than `/` in tests only. Paths for people are shown
            without it.
        cwd: the working directory, whose project has entries of its own.
        shim: path of this installation's `nsm-mcp`; empty if it has none.
    """

    home: str
    cwd: str
    uid: int
    user: str
    variables: Mapping[str, str] = field(default_factory=dict[str, str])
    search_path: str = ""
    shim: str = ""
    version: str = ""
    socket: str = ""
    lock: str = ""
    state: str = ""
    tools: str = ""
    root: str = "/"

    def real(self, path: str) -> str:
        """Real path of an absolute path of the host."""
        return path if self.root == "/" else os.path.join(self.root, path.lstrip("/"))

    def read(self, path: str) -> str | None:
        """Read a file's text; None if it cannot be read."""
        try:
            with open(self.real(path), encoding="utf-8", errors="replace") as file:
                return file.read(MAX_BYTES)
        except OSError:
            return None

    def number(self, path: str) -> int | None:
        """Read a number from a file of the kernel; None if there is none."""
        text = (self.read(path) or "").strip()
        return int(text) if text.isdecimal() else None

    def exists(self, path: str) -> bool:
        """Return whether something is there."""
        return os.path.lexists(self.real(path))

    def names(self, path: str) -> list[str]:
        """List the names in a directory, sorted; empty if it cannot be read."""
        try:
            return sorted(os.listdir(self.real(path)))
        except OSError:
            return []

    def mounts(self) -> list[tuple[str, str]]:
        """Mount points and types of file systems as this process sees them
        (proc_pid_mountinfo(5))."""
        found: list[tuple[str, str]] = []
        for line in (self.read("/proc/self/mountinfo") or "").splitlines():
            before, separator, after = line.partition(" - ")
            fields = before.split()
            if separator and len(fields) > 4 and after:
                found.append((_unescaped(fields[4]), after.split()[0]))
        return found

    def type_of(self, path: str) -> str:
        """Type of the file system of a path; empty if unknown."""
        best = ("", "")
        for point, kind in self.mounts():
            below = path == point or path.startswith(point.rstrip("/") + "/")
            if below and len(point) >= len(best[0]):
                best = (point, kind)
        return best[1]

    @property
    def containers_mark(self) -> str:
        """Mark of a container around this host; empty without one."""
        marks = {"/.dockerenv": "docker", "/run/.containerenv": "podman"}
        for path, kind in marks.items():
            if self.exists(path):
                return kind
        return self.variables.get("container", "")


def _unescaped(text: str) -> str:
    """A mount point, whose blanks and backslashes are octal."""
    for character in " \t\n\\":
        text = text.replace(f"\\{ord(character):03o}", character)
    return text


def this_host(search_path: str) -> Host:
    """Make the host that this process runs on."""
    try:
        user = pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        user = str(os.getuid())
    shim = os.path.join(os.path.dirname(sys.executable), "nsm-mcp")
    return Host(
        home=paths.home(),
        cwd=_working_directory(),
        uid=os.getuid(),
        user=user,
        variables=os.environ,
        search_path=search_path,
        shim=shim if os.access(shim, os.X_OK) else shutil.which("nsm-mcp", path=search_path) or "",
        version=program_version(),
        socket=paths.socket_path(),
        lock=os.path.join(paths.runtime_dir(), "supervisor.lock"),
        state=paths.state_dir(),
        tools=paths.tools_dir(),
    )


def _working_directory() -> str:
    try:
        return os.getcwd()
    except FileNotFoundError:
        return "/"
