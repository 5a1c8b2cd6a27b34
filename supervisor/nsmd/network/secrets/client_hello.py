"""The first message of a TLS client, read before TLS begins; pure (RFC 8446, 4.1.2)."""

from __future__ import annotations

from nsm.dataclass import dataclass

MAX_BYTES = 64 * 1024
"""Largest size of a message; those of browsers have 2 KB."""

_HANDSHAKE, _CLIENT_HELLO = 22, 1
_SERVER_NAME, _PROTOCOLS = 0, 16


class NoTlsError(Exception):
    """The client does not speak TLS."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientHello:
    """Wishes of a TLS client.

    Attributes:
        server_name: the name of the server, in lower case; empty if it says none.
        protocols: protocols on top of TLS that it knows.
    """

    server_name: str
    protocols: tuple[str, ...]


def read_client_hello(data: bytes) -> ClientHello | None:
    """Read the message; None until it is complete.

    Raises:
        NoTlsError: this is no such message.
    """
    message = bytearray()
    place = 0  # of the next record: a client may send one for each byte
    while True:
        if place < len(data) and data[place] != _HANDSHAKE:
            raise NoTlsError("the client does not speak TLS")
        if len(data) < place + 5:
            return None
        size = int.from_bytes(data[place + 3 : place + 5], "big")
        if not 0 < size <= 2**14 or data[place + 1] != 3:
            raise NoTlsError("the client's first message is no TLS record")
        if len(data) < place + 5 + size:
            return None
        message += data[place + 5 : place + 5 + size]
        place += 5 + size
        if message[0] != _CLIENT_HELLO:
            raise NoTlsError("the client's first message is no ClientHello")
        if len(message) >= 4:
            whole = 4 + int.from_bytes(message[1:4], "big")
            if whole > MAX_BYTES:
                raise NoTlsError("the client's first message is too long")
            if len(message) >= whole:
                return _read(bytes(message[4:whole]))


def _read(body: bytes) -> ClientHello:
    reader = _Reader(body)
    reader.take(2 + 32)  # version, random
    for size_bytes in (1, 2, 1):  # session id, cipher suites, compression methods
        reader.vector(size_bytes)
    server_name = ""
    protocols: tuple[str, ...] = ()
    extensions = _Reader(reader.vector(2)) if reader.left else _Reader(b"")
    while extensions.left:
        kind = extensions.number(2)
        content = _Reader(extensions.vector(2))
        if kind == _SERVER_NAME:
            server_name = _server_name(_Reader(content.vector(2)))
        elif kind == _PROTOCOLS:
            protocols = _protocols(_Reader(content.vector(2)))
    return ClientHello(server_name=server_name, protocols=protocols)


def _server_name(names: _Reader) -> str:
    if names.number(1) != 0:
        raise NoTlsError("the server name is of an unknown kind")
    return _text(names.vector(2)).lower()


def _protocols(names: _Reader) -> tuple[str, ...]:
    found: list[str] = []
    while names.left:
        found.append(_text(names.vector(1)))
    return tuple(found)


def _text(data: bytes) -> str:
    return data.decode("ascii", "replace")


class _Reader:
    """Reads numbers and vectors.

    Every method raises `NoTlsError` if there are not so many bytes.
    """

    def __init__(self, data: bytes) -> None:
        self.left = data

    def take(self, size: int) -> bytes:
        if size > len(self.left):
            raise NoTlsError("the client's first message is cut short")
        taken, self.left = self.left[:size], self.left[size:]
        return taken

    def number(self, size: int) -> int:
        return int.from_bytes(self.take(size), "big")

    def vector(self, size_bytes: int) -> bytes:
        return self.take(self.number(size_bytes))
