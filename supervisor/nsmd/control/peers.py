"""Identity of a connection's other end, from the kernel (unix(7), SO_PEERCRED)."""

from __future__ import annotations

import os
import socket
import struct

_UCRED = struct.Struct("3i")


def peer_of(descriptor: int) -> tuple[int, int]:
    """Process and user id of the peer of a Unix stream socket.

    Args:
        descriptor: descriptor of the socket; it stays open.

    Raises:
        OSError: it is no such socket.
    """
    with socket.socket(fileno=os.dup(descriptor)) as connection:
        data = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _UCRED.size)
    pid, uid, _gid = _UCRED.unpack(data)
    return int(pid), int(uid)
