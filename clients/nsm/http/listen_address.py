"""Allowed addresses of MCP over HTTP, and of ports of sessions: this machine's loopback, or a Unix
socket; pure.

A wider address must not be possible by a slip of configuration: bearer tokens in clear text need a
network that nobody listens to.
"""

from __future__ import annotations

import ipaddress
import re

from nsm.dataclass import dataclass

UNIX = "unix:"

HTTP_PORT = 80
"""Port that clients leave out of `Host`."""

_SESSION = re.compile(r"[A-Za-z0-9_.-]{1,64}")
_HOST = re.compile(r"([a-z0-9._-]+|\[[0-9a-f:.]+\])(:[0-9]{1,5})?")
_ORIGIN = re.compile(r"(null|[a-z][a-z0-9+.-]*://([a-z0-9._-]+|\[[0-9a-f:.]+\])(:[0-9]{1,5})?)")


@dataclass(frozen=True, slots=True)
class Port:
    """A TCP port of one of this machine's loopback addresses; 0 for any free one."""

    host: str
    number: int


@dataclass(frozen=True, slots=True)
class UnixPath:
    """A Unix socket, by its absolute path."""

    path: str


def parse_listen(text: str) -> Port | UnixPath:
    """Parse an address to listen at, as in `[http] listen`.

    Raises:
        ValueError: it is neither; the message says what was expected.
    """
    if text.startswith(UNIX):
        path = text.removeprefix(UNIX)
        if not path.startswith("/") or "\0" in path:
            raise ValueError(f"expected an absolute path behind {UNIX}")
        return UnixPath(path)
    host, colon, port = text.rpartition(":")
    if not (colon and port.isascii() and port.isdecimal() and len(port) <= 5):
        raise ValueError(_EXPECTED)
    if int(port) > 65535:
        raise ValueError("expected a port of 0 to 65535")
    if host == "localhost":
        host = "127.0.0.1"
    try:
        address = ipaddress.ip_address(host.removeprefix("[").removesuffix("]"))
    except ValueError:
        raise ValueError(_EXPECTED) from None
    if address.is_loopback and address.version == 6 and str(address) != "::1":
        # "[::1%lo]", "[::ffff:127.0.0.1]": the kernel reports another address for such a socket.
        raise ValueError(_EXPECTED)
    if not address.is_loopback or (address.version == 6) != host.startswith("["):
        raise ValueError(
            f"{_EXPECTED}: other machines must not reach it. For another network namespace, listen "
            "at a Unix socket there"
        )
    return Port(str(address), int(port))


_EXPECTED = 'expected an address of loopback with a port, like "127.0.0.1:7643", or "unix:/PATH"'


@dataclass(frozen=True, slots=True)
class ConfiguredPort:
    """A port of a session, by the session's name, that the configuration opens at an address; where
    that is empty, at any free port of the loopback.
    """

    session: str
    number: int
    address: str


def parse_port(text: str) -> ConfiguredPort:
    """Parse an item of `[ports] open`.

    Raises:
        ValueError: it is none; the message says what was expected.
    """
    place, equals, address = text.partition("=")
    session, _, number = place.rpartition(":")
    if not (_SESSION.fullmatch(session) and number.isascii() and number.isdecimal()):
        raise ValueError('expected "SESSION:PORT" or "SESSION:PORT=ADDRESS"')
    if len(number) > 5 or not 0 < int(number) < 65536:
        raise ValueError("expected a port of 1 to 65535")
    if equals:
        parse_listen(address)
    return ConfiguredPort(session, int(number), address)


def own_hosts(port: Port) -> frozenset[str]:
    """Return the `Host` headers of clients that mean this port."""
    names = {_shown(port.host), "localhost"}
    with_port = {f"{name}:{port.number}" for name in names}
    return frozenset(with_port | (names if port.number == HTTP_PORT else set[str]()))


def own_url(port: Port) -> str:
    """Return the URL of its root, without a slash."""
    return f"http://{_shown(port.host)}:{port.number}"


def why_no_host(text: str) -> str | None:
    """Explain why a text cannot be a `Host` header; None if it can."""
    return None if _HOST.fullmatch(text) else "expected HOST or HOST:PORT, in small letters"


def why_no_origin(text: str) -> str | None:
    """Explain why a text cannot be an `Origin` header; None if it can."""
    if _ORIGIN.fullmatch(text):
        return None
    return "expected SCHEME://HOST or SCHEME://HOST:PORT, in small letters and without a path"


def _shown(host: str) -> str:
    return f"[{host}]" if ":" in host else host
