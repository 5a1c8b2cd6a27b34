"""Look-ups of host names, and connections: to the addresses that were found, or through the user's
own proxy, which leads to some hosts.
"""

from __future__ import annotations

import socket
from base64 import b64encode
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import ExitStack
from ipaddress import IPv4Address, ip_address, ip_network
from urllib.parse import unquote, urlsplit

import trio

from nsm.dataclass import dataclass, field
from nsmd.model.host_rules import Address, AllowList, BadHostError, Host, parse_authority, show_host
from nsmd.network.decisions import RefusedError

Resolve = Callable[[str], Awaitable[Sequence[Address]]]
"""Addresses of a name, the best first; none if nobody knows it. Raises `OSError`."""

RESOLVE_TIMEOUT_S = 15.0
CONNECT_TIMEOUT_S = 15.0
"""Time for all attempts together; clients rarely wait longer."""

STAGGER_S = 0.25
"""Time between attempts at the addresses of one name (RFC 8305, 5)."""

MAX_ADDRESSES = 8
"""Largest number of addresses of one name to try."""

MAX_LOOK_UPS = 16
"""Threads in getaddrinfo(3) at once: one that hangs cannot be stopped."""

MAX_SESSION_LOOK_UPS = 4
"""Threads of one session: code that may ask for every name can ask for names whose servers never
answer.
"""


class SystemResolver:
    """`Resolve` by the host's own resolver."""

    def __init__(self) -> None:
        self._limiter = trio.CapacityLimiter(MAX_LOOK_UPS)

    async def __call__(self, name: str) -> Sequence[Address]:

        def look_up() -> list[Address]:
            rows = socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)
            return [ip_address(str(row[4][0]).partition("%")[0]) for row in rows]

        found = await trio.to_thread.run_sync(
            look_up, abandon_on_cancel=True, limiter=self._limiter
        )
        return list(dict.fromkeys(found))


class FewAtOnce:
    """`Resolve` for one session, which leaves some threads to other sessions."""

    def __init__(self, resolver: Resolve) -> None:
        self._resolver = resolver
        self._limiter = trio.CapacityLimiter(MAX_SESSION_LOOK_UPS)

    async def __call__(self, name: str) -> Sequence[Address]:
        async with self._limiter:
            return await self._resolver(name)


async def look_up(name: str, resolve: Resolve) -> Sequence[Address]:
    """Look up a name that may be reached."""
    found: Sequence[Address] = ()
    try:
        with trio.move_on_after(RESOLVE_TIMEOUT_S):
            found = await resolve(name)
    except (OSError, ValueError):
        found = ()
    if not found:
        raise RefusedError("unresolved", f"{name} is allowed, but has no address.")
    return found


async def connect(addresses: Sequence[Address], port: int) -> tuple[trio.SocketStream, Address]:
    """Connect to the first address that answers; each attempt begins a moment after the last. If
    none answers, the `OSError` of the first attempt is raised.
    """
    errors: dict[int, OSError] = {}
    winner: list[tuple[trio.SocketStream, Address]] = []
    with trio.move_on_after(CONNECT_TIMEOUT_S):
        async with trio.open_nursery() as nursery:

            async def attempt(place: int, failed: trio.Event) -> None:
                address = addresses[place]
                try:
                    stream = await _connect_one(address, port)
                except OSError as error:
                    errors[place] = error
                    failed.set()
                    return
                if winner:
                    await stream.aclose()
                    return
                winner.append((stream, address))
                nursery.cancel_scope.cancel()

            for place in range(len(addresses)):
                failed = trio.Event()
                nursery.start_soon(attempt, place, failed)
                with trio.move_on_after(STAGGER_S):
                    await failed.wait()
    if winner:
        return winner[0]
    if errors:
        raise errors[min(errors)]
    raise TimeoutError(f"no answer within {CONNECT_TIMEOUT_S:g} s")


async def _connect_one(address: Address, port: int) -> trio.SocketStream:
    family = socket.AF_INET if isinstance(address, IPv4Address) else socket.AF_INET6
    with ExitStack() as undo:
        sock = undo.enter_context(trio.socket.socket(family, socket.SOCK_STREAM))
        await sock.connect((str(address), port))
        undo.pop_all()
    return trio.SocketStream(sock)


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
    place, proxy_port, header = read_proxy_url(url)
    found = await look_up(place, resolve) if isinstance(place, str) else [place]
    try:
        stream, address = await connect(found[:MAX_ADDRESSES], proxy_port)
    except OSError as error:
        why = error.strerror or str(error)
        raise _unusable(f"does not answer at {show_host(place, proxy_port)}: {why}") from None
    try:
        await open_tunnel(stream, host, port, header)
    except BaseException:
        await trio.aclose_forcefully(stream)
        raise
    return stream, address


def read_proxy_url(url: str) -> tuple[Host, int, str]:
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


async def open_tunnel(stream: trio.SocketStream, host: Host, port: int, header: str) -> None:
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
    """Return whether a host is reached without the proxy. `excepted` has `*`, names with or without
    a dot in front (the name, and all below it), addresses and networks; perhaps with a port.
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
