"""Landlock, for what bubblewrap cannot do: keep from abstract sockets and process groups of others.

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
_SCOPE_ABSTRACT_UNIX_SOCKET, _SCOPE_SIGNAL = 1, 2
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

    Returns:
        True if they are closed; False if the kernel cannot do that.

    Raises:
        OSError: the kernel can, and does not.
    """
    if version() < SCOPES_SOCKETS:
        return False
    library = ctypes.CDLL(None, use_errno=True)
    # struct landlock_ruleset_attr: nothing of files and ports, and two scopes.
    fields = (0, 0, _SCOPE_ABSTRACT_UNIX_SOCKET | _SCOPE_SIGNAL)
    attributes = b"".join(field.to_bytes(8, sys.byteorder) for field in fields)
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
    return True


def _failed(call: str) -> OSError:
    number = ctypes.get_errno()
    return OSError(number, f"{call}: {os.strerror(number)}")
