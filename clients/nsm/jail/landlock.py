"""Landlock, which keeps code from abstract sockets and process groups of others; bwrap cannot.

It also keeps brokers, which have no jail, from all files.

Abstract Unix sockets (X11, D-Bus) have no path that could be left out of a jail; they belong to a
network namespace (unix(7)), so that whoever has the host's network can connect to them. And a
process group goes through PID namespaces: kill(2) with 0 in a jail reaches the script that started
it.
"""

from __future__ import annotations

import ctypes
import os
import sys

SCOPES_SOCKETS = 6
"""Version of Landlock's interface from which abstract sockets and signals can be shut off (Linux
6.12)."""

# linux/landlock.h; the numbers of the system calls are the same on every architecture.
_CREATE_RULESET, _RESTRICT_SELF = 444, 446
_VERSION = 1
_SCOPES = 1 | 2  # LANDLOCK_SCOPE_ABSTRACT_UNIX_SOCKET, LANDLOCK_SCOPE_SIGNAL
_TCP, _BIND_TCP, _CONNECT_TCP = 4, 1, 2
_RIGHTS_OF_FILES = ((5, 16), (3, 15), (2, 14), (1, 13))
"""Number of rights for files, by the version from which the kernel has them."""
_PR_SET_NO_NEW_PRIVS = 38


def version() -> int:
    """Version of the kernel's Landlock interface; 0 where there is none (landlock(7))."""
    if sys.platform != "linux":
        return 0
    library = ctypes.CDLL(None, use_errno=True)
    found: int = library.syscall(_CREATE_RULESET, None, 0, _VERSION)
    return max(0, found)


def close_scopes() -> bool:
    """Keep this process and all that it starts from abstract sockets that others have made, and
    from sending them signals.

    Files and mounts are not touched: a ruleset without rights of files lets bubblewrap mount. The
    process gets no privileges by exec any more, so a bubblewrap that is setuid would not work
    afterwards: the kernels that can do this do not need one.

    Returns False if the kernel cannot do that; if it can and does not, that is an OSError.
    """
    if version() < SCOPES_SOCKETS:
        return False
    # A ruleset without rights of files and ports.
    _enter(0, 0, _SCOPES)
    return True


def close_all() -> bool:
    """Keep this process from opening and changing files, from TCP, from abstract sockets that
    others have made, and from sending signals to others; as far as the kernel knows of these.

    What is open already stays open.

    Returns False if the kernel has no Landlock; if it has and refuses, that is an OSError.
    """
    found = version()
    if not found:
        return False
    files = next(count for since, count in _RIGHTS_OF_FILES if found >= since)
    tcp = _BIND_TCP | _CONNECT_TCP if found >= _TCP else 0
    _enter((1 << files) - 1, tcp, _SCOPES if found >= SCOPES_SOCKETS else 0)
    return True


def _enter(*fields: int) -> None:
    """Enter a domain with a `struct landlock_ruleset_attr`, and no rule."""
    library = ctypes.CDLL(None, use_errno=True)
    attributes = b"".join(field.to_bytes(8, sys.byteorder) for field in fields)
    # Older kernels take a longer struct if what they do not know is 0.
    ruleset: int = library.syscall(_CREATE_RULESET, attributes, len(attributes), 0)
    if ruleset < 0:
        raise _failed("landlock_create_ruleset")
    try:
        if library.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) < 0:
            raise _failed("prctl")
        if library.syscall(_RESTRICT_SELF, ruleset, 0) < 0:
            raise _failed("landlock_restrict_self")
    finally:
        os.close(ruleset)


def _failed(call: str) -> OSError:
    number = ctypes.get_errno()
    return OSError(number, f"{call}: {os.strerror(number)}")
