"""A port that is listened at, from outside."""

from __future__ import annotations

import socket

import pytest

from nsm.http.listen_address import Port
from nsmd.http.service import bound

UNAUTHORIZED = "HTTP/1.1 401"

END_S = 120.0


def unused(host: str) -> Port:
    """Find an unused port."""
    try:
        with bound(Port(host, 0)) as found:
            return Port(*found.getsockname()[:2])
    except OSError as error:
        pytest.skip(f"not here: nothing can listen at {host} ({error.strerror})")


def listening(listen: str) -> str:
    """A configuration; empty: off."""
    return f'[http]\nenabled = true\nlisten = "{listen}"\n' if listen else ""


def asking(number: int) -> socket.socket:
    """A client of the port who has asked for something, without a token."""
    client = socket.create_connection(("127.0.0.1", number))
    client.settimeout(END_S)
    client.sendall(f"POST /mcp HTTP/1.1\r\nHost: 127.0.0.1:{number}\r\n\r\n".encode())
    return client


def answer_of(client: socket.socket) -> str:
    """The beginning of what it is answered."""
    return client.recv(4096).decode()[: len(UNAUTHORIZED)]


def refused(number: int) -> None:
    """Nobody else can have it."""
    with pytest.raises(OSError, match="in use"):
        bound(Port("127.0.0.1", number))
