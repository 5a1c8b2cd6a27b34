"""Paths to closed directories for the jails of a supervisor that runs as root.

Such jails run as an ordinary user, who may not pass through /root to a project or an interpreter
there. The supervisor can: in a mount namespace of its own it binds them below a directory that
everyone may pass through, and bwrap finds them there. Nobody outside that namespace sees it.
"""

from __future__ import annotations

import ctypes
import logging
import os
import stat

from nsmd.jail.idmapped import mount_as

log = logging.getLogger(__name__)

BASE = "/run/nsm-mounts"
"""Empty directory on the host; a small file system in the supervisor's namespace."""

# From sched.h and sys/mount.h. `os.unshare` is new in Python 3.12, and there is no mount(2).
_CLONE_NEWNS = 0x0002_0000
_MS_NOSUID, _MS_NODEV, _MS_NOEXEC = 2, 4, 8
_MS_BIND, _MS_REC, _MS_SLAVE = 4096, 16384, 1 << 19


class PrivateMounts:
    """Binds of closed directories; made by `enter_private_mounts`.

    Each stays until the supervisor ends: there are as many as projects and interpreters.
    """

    def __init__(self, base: str) -> None:
        self._base = base
        self._exposed: dict[tuple[int, int, int | None], str] = {}

    def __repr__(self) -> str:
        return f"<PrivateMounts {self._base} {len(self._exposed)}>"

    def expose(self, directory: str, owner: int | None = None) -> str:
        """Make a path to a directory that every user may pass through.

        The mode and the content of the directory stay unchanged.

        Args:
            owner: user and group that the files of its owner and group belong to under that path;
                files of all others belong to nobody then.

        Raises:
            OSError: it is not there, or cannot be bound.
        """
        # The same directory has the same identity; one that was replaced gets a bind of its own.
        found = os.stat(directory)
        key = found.st_dev, found.st_ino, owner
        if key not in self._exposed:
            target = os.path.join(self._base, str(len(self._exposed)))
            os.makedirs(target, exist_ok=True)
            if owner is None:
                _mount(directory, target, "", _MS_BIND | _MS_REC, "")
            else:
                mount_as(directory, target, (found.st_uid, found.st_gid), owner)
            bound = os.stat(target)
            if (bound.st_dev, bound.st_ino) != key[:2]:
                raise OSError(f"{directory} was replaced while it was bound")
            self._exposed[key] = target
        return self._exposed[key]


def enter_private_mounts(base: str = BASE) -> PrivateMounts | None:
    """Move this process into a mount namespace of its own.

    Call it in the main thread, before others exist: they would stay outside. Later mounts on the
    host appear inside; the reverse does not happen.

    Args:
        base: directory for the binds; its parent must be open to all users and writable by root
            only.

    Returns:
        None if the kernel refuses, as in most containers; that is logged.
    """
    try:
        _make_base(base)
        _call("unshare", _CLONE_NEWNS)
        _mount("none", "/", "", _MS_REC | _MS_SLAVE, "")
        _mount("nsm", base, "tmpfs", _MS_NOSUID | _MS_NODEV | _MS_NOEXEC, "size=1m,mode=0755")
    except OSError as error:
        log.warning(
            "no mount namespace for the supervisor (%s): jails see only what their user can reach",
            error,
        )
        return None
    return PrivateMounts(base)


def _make_base(base: str) -> None:
    os.makedirs(base, exist_ok=True)
    found = os.lstat(base)
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid():
        raise OSError(f"{base} is not a directory of ours")
    os.chmod(base, 0o755)  # whatever the umask


def _mount(source: str, target: str, kind: str, flags: int, data: str) -> None:
    encoded = [os.fsencode(text) for text in (source, target, kind)]
    _call("mount", *encoded, ctypes.c_ulong(flags), data.encode())


def _call(name: str, *arguments: object) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc[name](*arguments) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{name}: {os.strerror(number)}")
