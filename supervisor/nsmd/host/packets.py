"""Packets with descriptors, as brokers receive them. Standard library only."""

from __future__ import annotations

import socket
import struct

ROOM_FOR_ONE = socket.CMSG_LEN(4)
"""Buffer size for one descriptor in `recvmsg`, as in `nsmd.fdstore.holder`."""

PACKET_BYTES = 256


def receive(channel: socket.socket, most: int = PACKET_BYTES) -> tuple[bytes, int | None]:
    """Receive a packet, and the descriptor that came with it.

    Args:
        most: largest size of a packet; a larger one is cut.

    Raises:
        OSError: there is none, or the channel has failed.
    """
    flags = socket.MSG_DONTWAIT | socket.MSG_CMSG_CLOEXEC
    message, parts, _, _ = channel.recvmsg(most, ROOM_FOR_ONE, flags)
    descriptor: int | None = None
    for level, kind, data in parts:
        if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS) and len(data) >= 4:
            (descriptor,) = struct.unpack("i", data[:4])
    return message, descriptor
