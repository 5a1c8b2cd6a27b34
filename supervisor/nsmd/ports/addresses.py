"""Addresses of the host at which ports of sessions are opened."""

from __future__ import annotations

import ipaddress
import os
import socket
from contextlib import suppress

from nsm.http.listen_address import UNIX, Port, UnixPath, parse_listen
from nsm.wire.errors import BadRequestError
from nsmd.host.listeners import PlaceError, bound, check_way, identity_of, tcp_listener
from nsmd.host.paths import trusted_owners

ANY_PORT = "127.0.0.1:0"
"""Address if none is asked for: any free port of the loopback."""

BACKLOG = 1024
"""Connections that wait while the relay is busy or away."""

Identity = tuple[int, int]


def parse_address(text: str, *, public: bool) -> Port | UnixPath:
    """Parse the address to listen at, which other machines may reach if the port is `public`."""
    try:
        return parse_listen(text)
    except ValueError as error:
        wide = _wide_address(text)
        if wide is not None and public:
            return wide
        raise BadRequestError(
            f"A port of a session cannot be opened at {text!r:.200}: "
            + ("other machines could reach it." if wide is not None else f"{error}."),
            hint="With `--public` it is opened all the same."
            if wide is not None
            else "For example 127.0.0.1:8000, 127.0.0.1:0 for any free port, or unix:/PATH.",
        ) from None


def _wide_address(text: str) -> Port | None:
    """Address that other machines may reach; None if the text is no address with a port."""
    host, _, number = text.rpartition(":")
    if not (number.isascii() and number.isdecimal() and len(number) <= 5 and int(number) < 65536):
        return None
    try:
        address = ipaddress.ip_address(host.removeprefix("[").removesuffix("]"))
    except ValueError:
        return None
    if "%" in host or (address.version == 6) != host.startswith("["):
        return None
    return Port(str(address), int(number))


def listen(address: Port | UnixPath) -> socket.socket:
    """Make a socket that listens at an address; a `BadRequestError` says why there can be none."""
    try:
        match address:
            case UnixPath(path=path):
                check_way(path, trusted_owners())  # its directory included
                return bound(path)
            case Port():
                return tcp_listener(address.host, address.number, BACKLOG)
    except PlaceError as error:
        raise BadRequestError(
            f"A port of a session cannot be opened there: {error.why}",
            hint="Choose another path for the socket, in a directory of yours.",
        ) from error
    except OSError as error:
        raise BadRequestError(
            f"A port of a session cannot be opened at {shown(address)}: {error.strerror}.",
            hint="`nsm port` lists the ports that nsm has opened; 127.0.0.1:0 is any free port.",
        ) from error


def listens_at(address: Port | UnixPath, listener: socket.socket) -> Port | UnixPath:
    """Return the address with the port number that the kernel chose."""
    if isinstance(address, UnixPath):
        return address
    return Port(address.host, int(listener.getsockname()[1]))


def shown(address: Port | UnixPath) -> str:
    """Text of an address, as people write it."""
    if isinstance(address, UnixPath):
        return UNIX + address.path
    host = f"[{address.host}]" if ":" in address.host else address.host
    return f"{host}:{address.number}"


def remove_socket(path: str, identity: Identity) -> None:
    """Remove a socket of ours, unless somebody has put another file in its place."""
    if identity_of(path) == identity:
        with suppress(OSError):
            os.unlink(path)
