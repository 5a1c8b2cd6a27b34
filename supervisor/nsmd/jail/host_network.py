"""Files for a session with the host's network, and its separation from the rest of the host."""

from __future__ import annotations

from collections.abc import Sequence

from nsm.jail import landlock
from nsmd.jail.arguments import HOSTNAME

MAX_FILE_BYTES = 256 * 1024
"""Largest part of a file that is copied; longer files are cut at a line."""

_NAMES = "passwd: files\ngroup: files\nhosts: files dns\n"


def network_files() -> Sequence[tuple[str, str]]:
    """Path and present content of the files by which names are resolved as on the host."""
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


def open_sockets() -> str | None:
    """Why a session with the host's network can reach abstract sockets of host programs; None if it
    cannot.
    """
    if landlock.version() >= landlock.SCOPES_SOCKETS:
        return None
    return (
        "code can connect to abstract Unix sockets of the host's programs: this kernel cannot shut "
        "them off (Landlock's scopes, Linux 6.12)"
    )
