"""The user's own proxy: which hosts it leads to, and connections through it by CONNECT."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Mapping
from ipaddress import ip_address, ip_network
from urllib.parse import unquote, urlsplit

import trio

from nsm.dataclass import dataclass, field
from nsmd.model.host_rules import Address, AllowList, BadHostError, Host, parse_authority, show_host
from nsmd.network.decisions import RefusedError
from nsmd.network.resolver import MAX_ADDRESSES, Resolve, connect, look_up

ALL = "*"

ANSWER_TIMEOUT_S = 30.0
"""Time for its answer to CONNECT: it connects to the host meanwhile."""

MAX_HEAD_BYTES = 16 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class UserHosts:
    """Hosts that the user has named one by one, and the user's own proxy.

    Attributes:
        named: these hosts. They may have private addresses, and no others are reached through the
            user's proxy: where that leads, nobody here can check.
        proxies: its URLs for `http` and `https`; they may hold a password.
        excepted: hosts that are reached without it, as of `is_excepted`.
        logins: hosts, to which programs send the user's login by themselves.
        plain: those that the user names with http://; the others need TLS.
    """

    named: AllowList = field(default_factory=AllowList)
    proxies: Mapping[str, str] = field(default_factory=dict[str, str], repr=False)
    excepted: tuple[str, ...] = ()
    logins: frozenset[Host] = frozenset()
    plain: AllowList = field(default_factory=AllowList)

    def needs_tls(self, host: Host, port: int) -> bool:
        """Return whether a request without TLS would show the user's login for a host to others."""
        return host in self.logins and not self.plain.permits(host, port)

    def proxy_for(self, host: Host, port: int, *, plain: bool) -> str:
        """Return the URL of the proxy for a host; empty if that is reached without."""
        url = self.proxies.get("http" if plain else "https", "")
        return "" if is_excepted(host, port, self.excepted) else url


NOBODY = UserHosts()
"""No such hosts, and no proxy."""


async def connect_through(
    url: str, host: Host, port: int, resolve: Resolve
) -> tuple[trio.SocketStream, Address]:
    """Connect to the proxy at a URL, which then leads to a host; returns its address, too."""
    place, proxy_port, header = where(url)
    found = await look_up(place, resolve) if isinstance(place, str) else [place]
    try:
        stream, address = await connect(found[:MAX_ADDRESSES], proxy_port)
    except OSError as error:
        why = error.strerror or str(error)
        raise _unusable(f"does not answer at {show_host(place, proxy_port)}: {why}") from None
    try:
        await tunnel(stream, host, port, header)
    except BaseException:
        await trio.aclose_forcefully(stream)
        raise
    return stream, address


def where(url: str) -> tuple[Host, int, str]:
    """Read host, port and the header for its login from the URL of a proxy."""
    try:
        parts = urlsplit(url if "://" in url else f"http://{url}")
        if parts.scheme.lower() != "http":
            raise _unusable(f"has a URL with {parts.scheme}://, where nsm can use http:// only")
        login, at, authority = parts.netloc.rpartition("@")
        host, port = parse_authority(authority, 80)
    except (ValueError, BadHostError):
        raise _unusable("has an invalid URL") from None
    if not at:
        return host, port, ""
    user, _, password = login.partition(":")
    told = b64encode(f"{unquote(user)}:{unquote(password)}".encode()).decode()
    return host, port, f"Proxy-Authorization: Basic {told}\r\n"


async def tunnel(stream: trio.SocketStream, host: Host, port: int, header: str) -> None:
    """Have the proxy at the other end of a connection connect to a host."""
    target = show_host(host, port)
    said = b""
    with trio.move_on_after(ANSWER_TIMEOUT_S):
        try:
            request = f"CONNECT {target} HTTP/1.1\r\nHost: {target}\r\n{header}\r\n"
            await stream.send_all(request.encode())
            while b"\r\n\r\n" not in said and len(said) < MAX_HEAD_BYTES:
                piece = await stream.receive_some(MAX_HEAD_BYTES)
                if not piece:
                    break
                said += piece
        except trio.BrokenResourceError:
            said = b""
    head, end, early = said.partition(b"\r\n\r\n")
    version, _, status = head.partition(b"\r\n")[0].decode("latin-1").partition(" ")
    if not end or not version.startswith("HTTP/1.") or not status:
        raise _unusable(f"does not lead to {target}: it gives no answer")
    # Programs speak first, so what comes with the answer is not of the host that was asked for.
    if status[:1] != "2" or early:
        raise _unusable(f"does not lead to {target}: it says {status[:60]}")


def _unusable(why: str) -> RefusedError:
    return RefusedError("unreachable", f"The user's own proxy {why}.")


def proxies_of(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the proxies for `http` and `https` that variables name."""
    found: dict[str, str] = {}
    for scheme in ("http", "https"):
        for name in (f"{scheme}_proxy", f"{scheme.upper()}_PROXY", "all_proxy", "ALL_PROXY"):
            if name in environ:
                if environ[name]:
                    found[scheme] = environ[name]
                break
    return found


def no_proxy_of(environ: Mapping[str, str]) -> tuple[str, ...]:
    """Return the hosts that variables except from the proxy."""
    said = environ.get("no_proxy", environ.get("NO_PROXY", ""))
    return tuple(each.strip().lower() for each in said.split(",") if each.strip())


def is_excepted(host: Host, port: int, excepted: tuple[str, ...]) -> bool:
    """Return whether a host is reached without the proxy.

    Args:
        excepted: `*`, names with or without a dot in front (the name, and all below it),
            addresses and networks; perhaps with a port.
    """
    shown = show_host(host).strip("[]")
    for each in excepted:
        if each == ALL:
            return True
        name, colon, said_port = each.rpartition(":")
        if not colon or not said_port.isdigit() or (":" in name and not name.endswith("]")):
            name, said_port = each, ""
        if said_port and int(said_port) != port:
            continue
        name = name.strip("[]").removeprefix("*").removeprefix(".")
        if isinstance(host, str):
            if name and (shown == name or shown.endswith(f".{name}")):
                return True
            continue
        try:
            if ip_address(shown) in ip_network(name, strict=False):
                return True
        except ValueError:
            continue
    return False
