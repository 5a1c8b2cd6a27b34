"""The upstream proxy: the proxy of the user's company, through which other hosts are reached.

The supervisor itself asks it to connect (CONNECT), so no jail, broker or helper gets the login. The
proxy looks names up itself; `nsmd.network.host_check` says what nsm can still hold then. Plain HTTP
goes by CONNECT, too: on a connection that reads requests for any host, code could hide one.
"""

from __future__ import annotations

import netrc
import os
import re
import socket
import time
from base64 import b64encode
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from http import HTTPStatus
from ipaddress import ip_address, ip_network
from urllib.parse import quote, unquote, urlsplit

import trio

from nsmd.model.host_rules import (
    HOST_NAME,
    BadHostError,
    Host,
    parse_authority,
    show_host,
)
from nsmd.model.secrets import parse_source
from nsmd.model.settings import UpstreamSettings
from nsmd.network.connections import MAX_ADDRESSES, Resolve, connect, look_up
from nsmd.network.decisions import RefusedError
from nsmd.network.secrets.vault import LEAST_AGE_S, SourceError, read_value

ANSWER_TIMEOUT_S = 20.0
"""Time for its answer to CONNECT: it connects to the host meanwhile. Code has 30 s by default, and
is told why it waits in vain.
"""

MAX_HEAD_BYTES = 16 * 1024

_HEAD_END = b"\r\n\r\n"
_SCHEME = re.compile(rb"(?im)^proxy-authenticate:[ \t]*([a-z][a-z0-9-]{0,30})")
_CONFIGURED = "`[network] upstream` in config.toml"
_INSTEAD = 'The user can set another one, or "off", as `[network] upstream` in config.toml'
_LOGIN = (
    "The user can put one into ~/.netrc, or name its source as `[network] upstream_login` in "
    "config.toml"
)

Login = Callable[[str], str]
"""Reads `USER:PASSWORD` for the host of a proxy; empty for none. Blocks. Raises `SourceError`."""


class Upstream:
    """Proxies for `http` and `https`, by their URLs, which may hold a password.

    Args:
        excepted: hosts that are reached without it, as of `is_excepted`.
        origin: what names it, for people.
        read_login: source of the login, if the URL has none.
    """

    def __init__(
        self,
        proxies: Mapping[str, str],
        excepted: Sequence[str] = (),
        *,
        origin: str = "HTTPS_PROXY, pip or npm",
        read_login: Login = lambda _: "",
    ) -> None:
        self._proxies = dict(proxies)
        self._excepted = tuple(excepted)
        self._origin = origin
        self._read_login = read_login
        self._logins: dict[str, tuple[str, float]] = {}  # by host, and when they were read
        self._failure = "", 0.0  # why the last one was not, and until when that is not tried again
        self._reading = trio.Lock()

    def __repr__(self) -> str:
        return f"<Upstream {self.shown}>"

    @property
    def shown(self) -> str:
        """Address and origin for people, without a login; empty if there is none."""
        urls = list(dict.fromkeys(self._proxies[each] for each in sorted(self._proxies)))[::-1]
        return f"{', '.join(map(show_proxy, urls))}, of {self._origin}" if urls else ""

    @property
    def urls(self) -> Sequence[str]:
        """Each proxy once; may hold a password."""
        return list(dict.fromkeys(self._proxies.values()))

    def proxy_for(self, host: Host, port: int, *, plain: bool) -> str:
        """Return the URL of the proxy for a host; empty if that is reached without. This machine's
        loopback is another one for a proxy, so it is never meant.
        """
        url = self._proxies.get("http" if plain else "https", "")
        local = host in (HOST_NAME, "localhost") if isinstance(host, str) else host.is_loopback
        return "" if local or is_excepted(host, port, self._excepted) else url

    def variables(self, environ: Mapping[str, str]) -> dict[str, str]:
        """Return variables with which programs outside jails, such as skopeo, use it, too: with the
        logins that are known by now.
        """
        others = {name: value for name, value in environ.items() if name.lower() not in _VARIABLES}
        found: dict[str, str] = {}
        for scheme, url in self._proxies.items():
            try:
                place, port, login = read_proxy_url(url)
            except BadProxyError:  # they may know more kinds of proxies
                found[f"{scheme}_proxy"] = url
                continue
            login = login or self._logins.get(str(place), ("", 0.0))[0]
            user, _, password = login.partition(":")
            told = f"{quote(user, safe='')}:{quote(password, safe='')}@" if login else ""
            found[f"{scheme}_proxy"] = f"http://{told}{show_host(place, port)}"
        if found:
            found["no_proxy"] = ",".join(self._excepted)
        return {**others, **found, **{name.upper(): value for name, value in found.items()}}

    async def read_logins(self) -> None:
        """Read the logins that are in no URL. Raises `RefusedError`."""
        for url in self.urls:
            with suppress(BadProxyError):
                place, port, login = read_proxy_url(url)
                if not login:
                    await self._known_login(str(place), show_host(place, port))

    async def _known_login(self, place: str, name: str) -> str:
        """Return the login for the proxy at a host, read once; `name` is for people."""
        async with self._reading:  # some sources ask the person
            why, until_s = self._failure
            if place not in self._logins and time.monotonic() > until_s:
                try:
                    login = await trio.to_thread.run_sync(self._read_login, place)
                    self._logins[place] = login, time.monotonic()
                except SourceError as error:
                    why = f"needs a login: {error}"
                    self._failure = why, time.monotonic() + LEAST_AGE_S
        if place not in self._logins:
            raise self._unusable(name, why, _LOGIN)
        return self._logins[place][0]

    async def connect(self, url: str, host: Host, port: int, resolve: Resolve) -> trio.SocketStream:
        """Connect to the proxy at a URL, which then leads to a host."""
        target = show_host(host, port)
        stream, name, login = await self._reach(url, resolve)
        try:
            place = _place_of(name)
            login = login or await self._known_login(place, name)
            request = f"CONNECT {target} HTTP/1.1\r\nHost: {target}\r\n{_header(login)}\r\n"
            status, head = await self._ask(stream, name, request, target)
            if status == HTTPStatus.PROXY_AUTHENTICATION_REQUIRED:
                if time.monotonic() > self._logins.get(place, ("", 0.0))[1] + LEAST_AGE_S:
                    self._logins.pop(place, None)  # its source may have another one by now
                raise self._no_login(name, head, login)  # noqa: TRY301
            if not 200 <= status < 300:
                # Its own words are left out: they could repeat what it was sent.
                why = f"does not lead to {target}: it answers {status}"
                raise self._unusable(name, why)  # noqa: TRY301
        except BaseException:
            await trio.aclose_forcefully(stream)
            raise
        return stream

    async def check(self, url: str, resolve: Resolve) -> None:
        """Check that the proxy at a URL answers, and takes the login if it asks for one. Raises
        `RefusedError`.
        """
        login = ""
        for attempt in range(2):
            stream, name, own = await self._reach(url, resolve)
            # It is for the proxy itself (RFC 9110, 9.3.7), so nothing leaves the company.
            request = f"OPTIONS http://{name}/ HTTP/1.1\r\nHost: {name}\r\nMax-Forwards: 0\r\n"
            request += f"{_header(login)}\r\n"
            async with stream:
                status, head = await self._ask(stream, name, request, "itself")
            if status != HTTPStatus.PROXY_AUTHENTICATION_REQUIRED:
                return
            if attempt == 0 and _takes_basic(head):
                login = own or await self._known_login(_place_of(name), name)
            if attempt or not login:
                raise self._no_login(name, head, login)

    async def _reach(self, url: str, resolve: Resolve) -> tuple[trio.SocketStream, str, str]:
        """Connect to a proxy; returns its host and port, and the login in its URL, too."""
        try:
            place, port, login = read_proxy_url(url)
        except BadProxyError as error:
            raise self._unusable("", str(error)) from None
        name = show_host(place, port)
        try:
            found = await look_up(place, resolve) if isinstance(place, str) else [place]
        except RefusedError:
            raise self._unusable(name, "has no address") from None
        try:
            stream, _ = await connect(found[:MAX_ADDRESSES], port)
        except OSError as error:
            why = os.strerror(error.errno) if error.errno else str(error)
            raise self._unusable(name, f"does not answer: {why}") from None
        return stream, name, login

    async def _ask(
        self, stream: trio.SocketStream, name: str, request: str, target: str
    ) -> tuple[int, bytes]:
        """Send a request to a proxy; returns status and head of its answer."""
        try:
            with trio.fail_after(ANSWER_TIMEOUT_S):
                await stream.send_all(request.encode())
                head = await _read_head(stream.socket)
        except trio.TooSlowError:
            why = f"gives no answer for {target} within {ANSWER_TIMEOUT_S:g} s"
            raise self._unusable(name, why) from None
        except (OSError, trio.BrokenResourceError):
            head = b""
        if not head:
            raise self._unusable(name, f"hangs up when it is asked for {target}")
        status = status_of(head)
        if status is None:
            raise self._unusable(name, "answers with something other than HTTP")
        return status, head

    def _no_login(self, name: str, head: bytes, login: str) -> RefusedError:
        """Say why a proxy that asks for a login (407) did not get one that it takes."""
        if not _takes_basic(head):
            schemes = dict.fromkeys(each.decode() for each in _SCHEME.findall(head))
            return self._unusable(
                name,
                f"asks for a login by {', '.join(schemes)}, where nsm can use Basic only: a helper "
                "such as cntlm or px, on a port of this machine, translates",
            )
        why = "does not accept the login (407)" if login else "asks for a login (407)"
        return self._unusable(name, why, _LOGIN)

    def _unusable(self, name: str, why: str, instead: str = _INSTEAD) -> RefusedError:
        return RefusedError(
            "upstream",
            f"The upstream proxy {name}{' ' if name else ''}(of {self._origin}) {why}. {instead}.",
        )


NO_UPSTREAM = Upstream({})


async def _read_head(sock: trio.socket.SocketType) -> bytes:
    """Read the head of an answer, and nothing after it: that is of the host, which may speak first.
    What was read is returned at the end of the connection, or after `MAX_HEAD_BYTES`.
    """
    said = b""
    while _HEAD_END not in said and len(said) < MAX_HEAD_BYTES:
        seen = await sock.recv(MAX_HEAD_BYTES, socket.MSG_PEEK)
        end = (said + seen).find(_HEAD_END)
        piece = await sock.recv(len(seen) if end < 0 else end + len(_HEAD_END) - len(said))
        if not piece:
            break
        said += piece
    return said


def status_of(head: bytes) -> int | None:
    """Return the status in the head of an answer; None if it is no complete head of HTTP."""
    found = re.match(rb"HTTP/1\.[01] ([1-5][0-9][0-9])(?: |\r)", head)
    return int(found[1]) if found is not None and _HEAD_END in head else None


def _place_of(name: str) -> str:
    """Return the host of a proxy that is shown with its port."""
    return name.rpartition(":")[0].strip("[]")


def _header(login: str) -> str:
    """Make the line with a login; empty without one."""
    if not login:
        return ""
    return f"Proxy-Authorization: Basic {b64encode(login.encode()).decode()}\r\n"


def _takes_basic(head: bytes) -> bool:
    schemes = [each.lower() for each in _SCHEME.findall(head)]
    return not schemes or b"basic" in schemes


class BadProxyError(ValueError):
    """The URL of a proxy cannot be used; the message does not repeat it."""


def read_proxy_url(url: str) -> tuple[Host, int, str]:
    """Read host, port and login (`USER:PASSWORD`) from the URL of a proxy."""
    scheme, slashes, _ = url.partition("://")
    if slashes and scheme.lower() != "http":
        raise BadProxyError(f"has a URL with {scheme:.20}://, where nsm can use http:// only")
    try:
        login, _, authority = urlsplit(url if slashes else f"http://{url}").netloc.rpartition("@")
        host, port = parse_authority(authority, 80)
    except (ValueError, BadHostError):
        raise BadProxyError("has an invalid URL") from None
    return host, port, unquote(login)


def show_proxy(url: str) -> str:
    """Show the host and port of a proxy, without its login."""
    try:
        return show_host(*read_proxy_url(url)[:2])
    except BadProxyError as error:
        return f"one that {error}"


_VARIABLES = frozenset(("http_proxy", "https_proxy", "all_proxy", "no_proxy"))


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
    return tuple(re.split(r"[,\s]+", said.lower().strip(", \t\n"))) if said.strip(", \t\n") else ()


def is_excepted(host: Host, port: int, excepted: tuple[str, ...]) -> bool:
    """Return whether a host is reached without the proxy, as curl and Python see it. `excepted` has
    `*`, names with or without a dot in front (the name, and all below it), addresses and networks;
    perhaps with a port.
    """
    shown = show_host(host).strip("[]")
    for each in excepted:
        if each == "*":
            return True
        name, colon, said_port = each.rpartition(":")
        if not colon or not said_port.isdigit() or (":" in name and not name.endswith("]")):
            name, said_port = each, ""
        if said_port and int(said_port) != port:
            continue
        name = name.strip("[]").removeprefix("*").strip(".")
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


def find_upstream(settings: UpstreamSettings, environ: Mapping[str, str], home: str) -> Upstream:
    """Find the upstream proxy: the configured one, else that of the supervisor's variables."""
    if settings.upstream == "off":
        return NO_UPSTREAM
    url = settings.upstream
    proxies = {"http": url, "https": url} if url else proxies_of(environ)
    source = parse_source(settings.upstream_login) if settings.upstream_login else None

    def read_login(place: str) -> str:
        if source is None:
            return _netrc_login(environ, home, place)
        login = read_value(source, environ)
        if ":" not in login:
            raise SourceError("its source gave no USER:PASSWORD")
        return login

    return Upstream(
        proxies,
        (*settings.no_proxy, *no_proxy_of(environ)),
        origin=_CONFIGURED if url else "the variables of the supervisor, such as HTTPS_PROXY",
        read_login=read_login,
    )


def _netrc_login(environ: Mapping[str, str], home: str, place: str) -> str:
    try:
        found = netrc.netrc(environ.get("NETRC") or os.path.join(home, ".netrc")).hosts.get(place)
    except (OSError, ValueError, netrc.NetrcParseError):
        return ""
    return f"{found[0]}:{found[2]}" if found is not None else ""
