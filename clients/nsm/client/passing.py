"""Descriptors that come with answers."""

from __future__ import annotations

import socket
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections import deque
    from collections.abc import Iterable

_READ_BYTES = 65536

_ROOM = socket.CMSG_LEN(4)
"""Room for one descriptor: an answer has no more."""


def receive_passing(connection: socket.socket, descriptors: deque[int]) -> bytes:
    """Read once, and keep the descriptor that comes with the data.

    Raises:
        OSError: as recvmsg(2).
    """
    data, parts, _, _ = connection.recvmsg(_READ_BYTES, _ROOM, socket.MSG_CMSG_CLOEXEC)
    descriptors.extend(_descriptors_in(parts))
    return data


def _descriptors_in(parts: Iterable[tuple[int, int, bytes]]) -> list[int]:
    return [
        int.from_bytes(content[:4], sys.byteorder)
        for level, kind, content in parts
        if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS)
    ]
