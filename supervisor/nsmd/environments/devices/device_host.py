"""The host's root directory, as devices and drivers are looked for in it."""

from __future__ import annotations

import os
import stat
import subprocess
from collections.abc import Callable
from contextlib import suppress

from nsm import paths
from nsm.dataclass import dataclass
from nsmd.jail.user import JailUser

LDCONFIG_TIMEOUT_S = 10.0
"""Time for ldconfig to print its cache; it takes 2 ms."""


class DeviceError(Exception):
    """Devices cannot be shown; the message says why and what to do, without a final dot."""


def _accessible(path: str) -> bool:
    return os.access(path, os.R_OK | os.W_OK)


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceHost:
    """The host as devices are looked for.

    Attributes:
        root: its root directory; other than `/` in tests only.
        can_use: returns whether the jails' user can read and write a device.
        jail_user: that user, for people.
        home: HOME of the supervisor's user, symlinks resolved; nothing of it is shown.
    """

    root: str = "/"
    can_use: Callable[[str], bool] = _accessible
    jail_user: str = "your user"
    home: str = "/root"

    def real(self, path: str) -> str:
        """Real path of an absolute path of the host."""
        return path if self.root == "/" else self.root + path

    def names(self, path: str) -> list[str]:
        """List the names in a directory, sorted; empty if it cannot be read."""
        try:
            return sorted(os.listdir(self.real(path)))
        except OSError:
            return []

    def read(self, path: str) -> str:
        """Read a small file of the kernel; empty if it cannot be read."""
        try:
            with open(self.real(path), encoding="utf-8", errors="replace") as file:
                return file.read(65536)
        except OSError:
            return ""

    def device(self, path: str) -> os.stat_result | None:
        """Status of a character device; None if there is none."""
        with suppress(OSError):
            status = os.stat(self.real(path))
            if stat.S_ISCHR(status.st_mode):
                return status
        return None

    def followed(self, path: str) -> str:
        """The same path of the host without symbolic links; itself if nothing is there."""
        real = os.path.realpath(self.real(path))
        top = "" if self.root == "/" else os.path.realpath(self.root)
        return real.removeprefix(top) or "/"

    def loader_cache(self) -> str:
        """The libraries that the loader knows, as `ldconfig -p` prints them."""
        for program in ("/sbin/ldconfig", "/usr/sbin/ldconfig"):
            with suppress(OSError, subprocess.SubprocessError):
                done = subprocess.run(
                    [self.real(program), "-p"],
                    stdin=subprocess.DEVNULL,
                    capture_output=True,
                    text=True,
                    errors="replace",
                    cwd="/",
                    env={},
                    timeout=LDCONFIG_TIMEOUT_S,
                    check=False,
                )
                return done.stdout
        return ""


def device_host(user: JailUser) -> DeviceHost:
    """Make the host as it is for jails of a user."""
    name = "your user" if user.uid == os.geteuid() else f"user {user.uid}, as whom root's jails run"
    return DeviceHost(can_use=user.can_use, jail_user=name, home=os.path.realpath(paths.home()))
