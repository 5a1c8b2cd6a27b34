"""Requests of clients to a proxy, without I/O: HTTP (`CONNECT` and whole URLs), SOCKS 5, and none.

h11 reads the bytes of HTTP clients; it is strict about requests, and `check_length` refuses the
rest of what servers may read differently. The server of a URL gets what the URL says: its path,
and its host in place of any `Host` header. So only the URL decides which server gets which request.
A connection of a client may carry several requests, each for another host. A connection to a
server carries one.
"""

from __future__ import annotations

from ipaddress import IPv4Address, IPv6Address
from typing import TYPE_CHECKING

import h11

from nsm.wire.tuples import NamedTuple
from nsmd.model.host_rules import BadHostError, Host, parse_authority, parse_host, show_host
from nsmd.network.decisions import Protocol, RefusedError, http_response, socks_code

if TYPE_CHECKING:
    from collections.abc import Iterable

MAX_HEAD_BYTES = 64 * 1024
"""Largest size of a request's first line and headers; cookies and tokens make some long."""

KEEP_ALIVE_S = 15
"""Time for a client to send another request on its connection, which takes room meanwhile."""

MAX_QUOTED = 200
"""Characters of h11's reasons that the client gets: they quote headers whole."""

_DROPPED = frozenset(
    (
        b"connection",
        b"host",
        b"keep-alive",
        b"proxy-authenticate",
        b"proxy-authorization",
        b"proxy-connection",
        b"te",
        b"trailer",
        b"upgrade",
    )
)
"""Headers that concern one connection only (RFC 9110, 7.6.1), and the host, which the URL has."""

_SCHEME = b"http://"

_VERSIONS = (b"1.0", b"1.1")


class WrongLengthError(Exception):
    """Servers might find the end of a request at different bytes."""


class ProxyRequest(NamedTuple):
    """Request of a client: by `http` for a URL, else for a connection that carries any bytes."""

    host: Host
    port: int
    protocol: Protocol


class WebProxy:
    """One connection of an HTTP client.

    The whole request has been passed on once it is `done`, and nothing more of the server is passed
    on once it is `answered`.
    """

    protocol: Protocol = "http"

    def __init__(self) -> None:
        self._client = h11.Connection(h11.SERVER, max_incomplete_event_size=MAX_HEAD_BYTES)
        self._begin()

    def _begin(self) -> None:
        self._server = h11.Connection(h11.CLIENT, max_incomplete_event_size=MAX_HEAD_BYTES)
        self._head: h11.Request | None = None
        self.done = self.answered = False
        self._head_of_answer = b""
        self._as_is = False

    def receive_data(self, data: bytes) -> None:
        """Take bytes of the client; empty at the end."""
        try:
            self._client.receive_data(data)
        except h11.RemoteProtocolError as error:
            raise _bad(str(error)) from None

    def next_request(self) -> ProxyRequest | None:
        """Read the request; None until it is complete, and if the client has ended."""
        event = self._next()
        if not isinstance(event, h11.Request):
            return None
        self._head = event
        try:
            check_length(event)
        except WrongLengthError as error:
            raise _bad(str(error)) from None
        try:
            if event.method == b"CONNECT":
                host, port = parse_authority(event.target.decode("ascii"))
                return ProxyRequest(host, port, "connect")
            host, port, _ = _split_url(event.target)
        except (BadHostError, UnicodeDecodeError) as error:
            raise _bad(f"its target {error}") from None
        return ProxyRequest(host, port, "http")

    def answers(self) -> bytes:
        """Return the bytes to send before more arrive: none."""
        return b""

    def refusal(self, refused: RefusedError) -> bytes:
        """Make the answer for a refused request."""
        return http_response(refused)

    def begin_tunnel(self) -> tuple[bytes, bytes]:
        """The answer to a `CONNECT`, and the bytes that the client has already sent for
        the server.
        """
        early, _ = self._client.trailing_data
        return b"HTTP/1.1 200 Connection established\r\n\r\n", early

    def head(self) -> bytes:
        """Return the head to send to the server of a URL."""
        try:
            return self._server.send(self.outgoing()) or b""
        except h11.LocalProtocolError as error:
            raise _bad(str(error)) from None

    def outgoing(self) -> h11.Request:
        """Return the request for the server of a URL."""
        assert self._head is not None, "there is a request"
        host, port, path = _split_url(self._head.target)
        shown = show_host(host) if port == 80 else show_host(host, port)
        return h11.Request(
            method=self._head.method,
            target=path,
            headers=[
                (b"Host", shown.encode()),
                *_kept(self._head.headers.raw_items()),
                (b"Connection", b"close"),
            ],
        )

    def next_body(self) -> bytes | None:
        """Read more of the request's body for the server; None until more arrives."""
        passed = b""
        while not self.done:
            event = self._next()
            if isinstance(event, h11.Data):
                passed += self._server.send(h11.Data(data=event.data)) or b""
            elif isinstance(event, h11.EndOfMessage):
                passed += self._server.send(h11.EndOfMessage()) or b""
                self.done = True
            elif event is h11.NEED_DATA:
                return passed or None
            else:
                raise _bad("its body ended too early")
        return passed

    def receive_answer(self, data: bytes) -> bytes:
        """Take bytes of the server, empty at its end; returns those for the client.

        A head that h11 does not understand goes on as it is, and the connection ends with it.
        """
        if self._as_is:
            self.answered = not data
            return data
        begun = self._client.our_state is not h11.SEND_RESPONSE
        if not begun:
            self._head_of_answer += data
        passed = b""
        try:
            self._server.receive_data(data)
            while not self.answered and (event := self._server.next_event()) is not h11.NEED_DATA:
                passed += self._answer(event)
        except (h11.RemoteProtocolError, h11.LocalProtocolError):
            self._as_is = not begun and not passed
            self.answered = not (self._as_is and data)
            return self._head_of_answer if self._as_is else passed
        return passed

    def _answer(self, event: object) -> bytes:
        """Return the bytes for the client that stand for an event of the server."""
        if isinstance(event, h11.Response):
            headers = _kept(event.headers.raw_items())
            if not self.done:  # what it is still sending could be taken for its next request
                headers.append((b"Connection", b"close"))
            else:
                headers.append((b"Keep-Alive", b"timeout=%d" % KEEP_ALIVE_S))
            event = h11.Response(
                status_code=event.status_code, reason=event.reason, headers=headers
            )
        self.answered = not isinstance(event, h11.Response | h11.InformationalResponse | h11.Data)
        return self._client.send(event) or b"" if isinstance(event, h11.Event) else b""

    def begin_next(self) -> bool:
        """Get ready for the client's next request; False if there can be none."""
        if (self._client.our_state, self._client.their_state) != (h11.DONE, h11.DONE):
            return False
        self._client.start_next_cycle()
        self._begin()
        return True

    def _next(self) -> object:
        try:
            return self._client.next_event()
        except h11.RemoteProtocolError as error:
            raise _bad(str(error)) from None


def check_length(request: h11.Request) -> None:
    """Check that every server finds the end of this request at the same byte, here and in helpers.

    A server that believes another header would take a part of the body for a second request.
    """
    values = dict(request.headers)
    length, coded = values.get(b"content-length"), b"transfer-encoding" in values
    if request.http_version not in _VERSIONS:
        raise WrongLengthError("its version of HTTP is neither 1.0 nor 1.1")
    if coded and length is not None:
        raise WrongLengthError("it has both Content-Length and Transfer-Encoding")
    if coded and request.http_version == b"1.0":
        raise WrongLengthError("HTTP/1.0 has no Transfer-Encoding")
    if length is not None and length != b"%d" % int(length):
        raise WrongLengthError("its Content-Length begins with a zero")
    if request.method == b"CONNECT" and (coded or length not in (None, b"0")):
        raise WrongLengthError("CONNECT has no body")


def _kept(headers: Iterable[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
    """Headers for the server."""
    rows = list(headers)
    named = {
        name.strip().lower()
        for header, value in rows
        if header.lower() == b"connection"
        for name in value.split(b",")
    }
    # The client cannot have the headers dropped that frame the body.
    named -= {b"content-length", b"transfer-encoding"}
    return [(name, value) for name, value in rows if name.lower() not in _DROPPED | named]


def _split_url(target: bytes) -> tuple[Host, int, bytes]:
    """Split an `http://` URL into host, port and path; the error may be `UnicodeDecodeError`."""
    if target[:7].lower() != _SCHEME:
        raise BadHostError("is neither an http:// URL nor, with CONNECT, HOST:PORT")
    rest = target[7:]
    place = min((at for mark in b"/?#" if (at := rest.find(mark)) >= 0), default=len(rest))
    authority, path = rest[:place], rest[place:].partition(b"#")[0]
    # Also for an `@`: programs have been fooled before by `http://a@b` as a host.
    host, port = parse_authority(authority.decode("ascii"), 80)
    return host, port, path if path.startswith(b"/") else b"/" + path


def _bad(why: str) -> RefusedError:
    return RefusedError(
        "bad-request",
        f"nsm's proxy does not accept this request: {why:.{MAX_QUOTED}}. It takes "
        "CONNECT HOST:PORT, http:// URLs and SOCKS 5.",
    )


SOCKS_VERSION = 5

_NO_AUTHENTICATION = 0
_CONNECT = 1
_ADDRESS_4, _NAME, _ADDRESS_6 = 1, 3, 4
_NOTHING_ACCEPTABLE = b"\x05\xff"
_BOUND = b"\x00\x01\x00\x00\x00\x00\x00\x00"
"""Address that we claim to connect from: code must not know the real one."""

_UNKNOWN_COMMAND, _UNKNOWN_ADDRESS_TYPE = 7, 8


class SocksProxy:
    """One connection of a SOCKS client, from its first byte to its request."""

    protocol: Protocol = "socks5"

    def __init__(self) -> None:
        self._data = b""
        self._greeted = False
        self._answers = b""
        self._code: int | None = None

    def receive_data(self, data: bytes) -> None:
        """Take bytes of the client."""
        self._data += data

    def answers(self) -> bytes:
        """Return the bytes to send before more arrive; each byte once."""
        answers, self._answers = self._answers, b""
        return answers

    def next_request(self) -> ProxyRequest | None:
        """Read the request; None until it is complete. Its size is bounded: 519 bytes."""
        if not self._greeted and not self._greet():
            return None
        if len(self._data) < 5:
            return None
        version, command, _, kind, size = self._data[:5]
        if version != SOCKS_VERSION:
            raise _bad_socks("it has another version")
        if command != _CONNECT:
            self._code = _UNKNOWN_COMMAND
            raise _bad_socks("only CONNECT is known")
        length = {_ADDRESS_4: 4, _ADDRESS_6: 16, _NAME: 1 + size}.get(kind)
        if length is None:
            self._code = _UNKNOWN_ADDRESS_TYPE
            raise _bad_socks("it has an unknown type of address")
        end = 4 + length + 2
        if len(self._data) < end:
            return None
        address = self._data[4 : 4 + length]
        port = int.from_bytes(self._data[4 + length : end], "big")
        self._data = self._data[end:]
        return ProxyRequest(_socks_host(kind, address), _socks_port(port), self.protocol)

    def begin_next(self) -> bool:
        """Get ready for another request: there can be none."""
        return False

    def begin_tunnel(self) -> tuple[bytes, bytes]:
        """The answer, and the bytes that the client has already sent for the server."""
        early, self._data = self._data, b""
        return bytes((SOCKS_VERSION, 0)) + _BOUND, early

    def refusal(self, refused: RefusedError) -> bytes:
        """Make the answer for a refused request."""
        if not self._greeted:
            return _NOTHING_ACCEPTABLE
        code = socks_code(refused) if self._code is None else self._code
        return bytes((SOCKS_VERSION, code)) + _BOUND

    def _greet(self) -> bool:
        if len(self._data) < 2 or len(self._data) < 2 + self._data[1]:
            return False
        if self._data[0] != SOCKS_VERSION:
            raise _bad_socks("it has another version")
        methods = self._data[2 : 2 + self._data[1]]
        if _NO_AUTHENTICATION not in methods:
            raise _bad_socks("it insists on authentication")
        self._data = self._data[2 + len(methods) :]
        self._greeted = True
        self._answers += bytes((SOCKS_VERSION, _NO_AUTHENTICATION))
        return True


class DirectProxy:
    """One connection of a program that knows no proxy, to HOST:PORT."""

    protocol: Protocol = "tcp"

    def __init__(self, target: str) -> None:
        self._target = parse_authority(target)

    def receive_data(self, data: bytes) -> None:
        """Take bytes of the client: none are for the proxy."""

    def answers(self) -> bytes:
        """Return the bytes to send before more arrive: none."""
        return b""

    def next_request(self) -> ProxyRequest:
        """Return what its connection asks for."""
        return ProxyRequest(*self._target, self.protocol)

    def begin_next(self) -> bool:
        """Get ready for another request: there can be none."""
        return False

    def begin_tunnel(self) -> tuple[bytes, bytes]:
        """The answer to a program that knows of no proxy: none."""
        return b"", b""

    def refusal(self, _refused: RefusedError) -> bytes:
        """Make the answer for a refused request: none."""
        return b""


def _socks_host(kind: int, data: bytes) -> Host:
    if kind == _ADDRESS_4:
        return IPv4Address(data)
    if kind == _ADDRESS_6:
        return IPv6Address(data)
    try:
        # A name with a NUL in it once passed a check of its end, and was resolved up to the NUL.
        return parse_host(data[1:].decode("ascii"))
    except (BadHostError, UnicodeDecodeError) as error:
        raise _bad_socks(f"its host {error}") from None


def _socks_port(port: int) -> int:
    if not port:
        raise _bad_socks("it has no port")
    return port


def _bad_socks(why: str) -> RefusedError:
    return RefusedError("bad-request", f"nsm's proxy does not accept this SOCKS request: {why}.")
