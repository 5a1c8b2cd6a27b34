"""Checks of what an agent passes. Standard library only."""

from __future__ import annotations

import os
import socket


class AgentPassingError(Exception):
    """The agent did what ours does not."""


def adopt(descriptor: int | None) -> socket.socket | None:
    """Take a descriptor that the agent passed, if it did.

    Raises:
        AgentPassingError: it is no socket.
    """
    if descriptor is None:
        return None
    try:
        return socket.socket(fileno=descriptor)
    except OSError:
        os.close(descriptor)
        raise AgentPassingError("what came for a port is no socket") from None


def check_connection(passed: socket.socket | None, port: int) -> socket.socket:
    """Check that what came is a connection to a port of a loopback, and return it.

    Raises:
        AgentPassingError: it is something else.
        OSError: it is no longer connected.
    """
    if passed is None:
        raise AgentPassingError("no socket came for a port")
    expected = (
        (socket.SO_TYPE, (socket.SOCK_STREAM,)),
        (socket.SO_DOMAIN, (socket.AF_INET, socket.AF_INET6)),
        (socket.SO_PROTOCOL, (socket.IPPROTO_TCP,)),
        (socket.SO_ACCEPTCONN, (0,)),
    )
    for option, values in expected:
        if passed.getsockopt(socket.SOL_SOCKET, option) not in values:
            raise AgentPassingError("what came for a port is no TCP connection")
    address = passed.getpeername()
    if address[0] not in ("127.0.0.1", "::1") or address[1] != port:
        raise AgentPassingError("the connection that came leads elsewhere than to the port")
    return passed
