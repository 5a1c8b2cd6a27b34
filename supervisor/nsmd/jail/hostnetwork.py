"""What a session with the host's network needs of the host, and what keeps it from the rest."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence

from nsmd.jail.arguments import HOSTNAME

SCOPES_SOCKETS = 6
"""Version of Landlock's interface from which abstract sockets can be shut off (Linux 6.12)."""

MAX_FILE_BYTES = 256 * 1024
"""Of a file that is copied; longer ones are cut at a line."""

_CREATE_RULESET = 444  # landlock_create_ruleset(2), on every architecture
_VERSION = 1

_NAMES = "passwd: files\ngroup: files\nhosts: files dns\n"


def network_files() -> Sequence[tuple[str, str]]:
    """Files by which names are resolved as on the host, as they are now: path and content."""
    hosts = f"127.0.0.1 localhost {HOSTNAME}\n::1 localhost\n"
    return (
        ("/etc/nsswitch.conf", _NAMES),
        ("/etc/hosts", hosts + _copied("/etc/hosts")),
        ("/etc/resolv.conf", _copied("/etc/resolv.conf")),
    )


def _copied(path: str) -> str:
    try:
        with open(path, "rb") as file:
            data = file.read(MAX_FILE_BYTES + 1)
    except OSError:
        return ""
    if len(data) > MAX_FILE_BYTES:
        data = data[: data.rfind(b"\n", 0, MAX_FILE_BYTES) + 1]
    return data.decode(errors="replace")


def landlock_version() -> int:
    """Version of the kernel's Landlock interface; 0 where there is none (landlock(7))."""
    library = ctypes.CDLL(None, use_errno=True)
    version: int = library.syscall(_CREATE_RULESET, None, 0, _VERSION)
    return max(0, version)


def open_sockets() -> str | None:
    """Why abstract sockets of the host's programs are open to a session with its network; None
    where they are not."""
    version = landlock_version()
    if version >= SCOPES_SOCKETS:
        return None
    return (
        "code can connect to abstract Unix sockets of the host's programs: this kernel cannot shut "
        "them off (Landlock's scopes, Linux 6.12)"
    )
