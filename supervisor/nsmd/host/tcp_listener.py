"""Listening TCP sockets."""

from __future__ import annotations

import socket


def tcp_listener(host: str, number: int, backlog: int) -> socket.socket:
    """Make a socket that listens at an address of this machine, and does not block.

    Args:
        number: port number; 0 for any free one.
        backlog: connections that the kernel holds while nobody accepts them.

    Raises:
        OSError: the port is taken or forbidden.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        # Lingering connections of an earlier supervisor must not prevent this.
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        listener.bind((host, number))
        listener.listen(backlog)
        listener.setblocking(False)
    except OSError:
        listener.close()
        raise
    return listener
