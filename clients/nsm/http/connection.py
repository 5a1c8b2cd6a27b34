"""One connection: requests one after another, each within its limits, for an ASGI application (the
ASGI specification, HTTP, 2.3).

Everything that a client can do is bounded: time and size of a head and a body, time without reading
what it gets, and bytes that it sends while it waits for an answer. No body is read before the guard
has admitted its head. There is no HTTP/2 and no upgrade of any kind: both are ignored, as a server
may (RFC 9110, 7.8). The application never waits for a client that is gone: its further messages are
dropped, and it gets `http.disconnect`.
"""

from __future__ import annotations

import logging
import math
import re
from collections.abc import Awaitable, Callable, MutableMapping
from email.utils import formatdate
from http import HTTPStatus
from typing import Any
from urllib.parse import unquote

import h11
import trio

from nsm.dataclass import dataclass
from nsm.http.access import AdmittedRequest, Answer, Guard, Headers

log = logging.getLogger(__name__)

HEAD_TIMEOUT_S = 10.0
"""Time for a head, from the connection's begin or from its first byte: programs on this machine
send it at once.
"""

KEEP_ALIVE_S = 75.0
"""Time without a request, after the first: longer than clients keep a connection (the SDKs 5 to 60
s), so that none is closed just when it is used.
"""

BODY_TIMEOUT_S = 30.0
"""Time for a body."""

WRITE_TIMEOUT_S = 30.0
"""Time within which a client must read some of what it gets."""

LINGER_S = 2.0
"""Time for a client to read a refusal, before its remaining bytes make the kernel drop the answer
(tcp(7), RST).
"""

MAX_HEAD_BYTES = 32 * 1024
"""Largest head of a request."""

MAX_HEAD_LINES = 128
"""Largest number of lines in a head. Clients send ten; as many as fit would take 16 ms of
everybody's time, for a client without a token.
"""

MAX_SPACES = 16
"""Largest row of spaces or tabs in a head or between chunks; nobody sends two. If the line after
them is wrong, h11 is quadratic in their number: 4 s for 32 KiB, of everybody's time, without a
token.
"""

MAX_AHEAD_BYTES = 64 * 1024
"""Bytes to read while a request is answered, to notice when the client goes."""

SMALL_BYTES = 64 * 1024
"""Bytes of a body that are not counted, since the number of connections is limited."""

_SPACES = b" " * (MAX_SPACES + 1)
_HEAD_END = re.compile(rb"\n\r?\n")  # the same as in h11

_CHUNK_BYTES = 64 * 1024
_FRAME_BYTES = 1024
"""Largest piece of a head or of a chunked body for h11, so that no more than that is parsed before
the checks here.
"""
_SLICE_BYTES = 64 * 1024

_RETRY_SOON: Headers = ((b"retry-after", b"1"),)

_TOO_MANY = Answer(
    status=HTTPStatus.SERVICE_UNAVAILABLE,
    text="There are too many connections.",
    headers=_RETRY_SOON,
)

CONTINUE = h11.InformationalResponse(status_code=HTTPStatus.CONTINUE, headers=[])

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Application = Callable[[dict[str, Any], Receive, Send], Awaitable[None]]
"""An ASGI 3 application: takes a scope, and functions to receive and to send."""

_OF_CONNECTIONS = frozenset((b"connection", b"keep-alive", b"transfer-encoding", b"upgrade"))
"""Headers for the connection and not for the application (RFC 9110, 7.6.1)."""

_NOT_FOR_APPLICATIONS = frozenset((b"authorization", b"cookie", b"proxy-authorization"))
"""Secret headers, which reach neither application nor log."""


class _RefusedError(Exception):
    """A request that is refused."""

    def __init__(self, answer: Answer) -> None:
        self.answer = answer
        super().__init__(answer.text)


class Bodies:
    """Bound on the bytes of request bodies in memory, for all clients together."""

    def __init__(self, most: int) -> None:
        self.most = most
        self.taken = 0


class BodyShare:
    """Part of the bound that one request holds until `free`."""

    def __init__(self, of: Bodies) -> None:
        self._of = of
        self._bytes = 0

    def grow(self, size: int) -> bool:
        """Hold so many bytes in all; False if there is no room."""
        more = max(0, size - SMALL_BYTES) - self._bytes
        if more > 0:
            if self._of.taken + more > self._of.most:
                return False
            self._of.taken += more
            self._bytes += more
        return True

    def free(self) -> None:
        """Free the share: the request was answered."""
        self._of.taken -= self._bytes
        self._bytes = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Served:
    """State that all connections of a listener share.

    Attributes:
        refused: called with the reason of each refusal.
        admitted: called for a connection with an admitted request.
    """

    guard: Guard
    application: Application
    refused: Callable[[str], None]
    admitted: Callable[[], None]
    max_body_bytes: int
    bodies: Bodies


class Connection:
    """One connection with its requests, one after another. It closes the stream at its end.

    Attributes:
        admitted: its last request had the token.
        welcome: some request over it had a token.
        waiting_since_s: time since which it has nothing to answer, on trio's clock; infinite while
            it has.
    """

    def __init__(self, stream: trio.abc.HalfCloseableStream, served: Served, client: str) -> None:
        self._stream = stream
        self._served = served
        self._client = client
        self._h11 = h11.Connection(h11.SERVER, max_incomplete_event_size=MAX_HEAD_BYTES)
        self.admitted = False
        self.welcome = False
        self.waiting_since_s = trio.current_time()
        self._scope = trio.CancelScope()
        self._ahead = bytearray()
        self._ended = False
        self._wants_head_only = False

    def __repr__(self) -> str:
        return f"<Connection of {self._client} admitted={self.admitted}>"

    def end(self) -> None:
        """Close it, whatever it is doing."""
        self._scope.cancel()

    async def serve(self) -> None:
        """Serve until it is closed; raises only cancellation."""
        with self._scope:
            try:
                async with self._stream:
                    while await self._serve_one():
                        pass
            except (trio.BrokenResourceError, trio.ClosedResourceError):
                log.debug("a client over HTTP went away")
            except Exception:  # the fault of one connection must not end the others
                log.exception("a connection over HTTP failed")

    async def refuse(self, *, silently: bool) -> None:
        """Close the connection, as there are too many; the answer to any request says so."""
        self._served.refused("number")
        if silently:
            await trio.aclose_forcefully(self._stream)
            return
        with self._scope:
            try:
                async with self._stream:
                    await self._answer(_TOO_MANY, last=True)
                    await self._linger()
            except (trio.BrokenResourceError, trio.ClosedResourceError):
                log.debug("a client over HTTP went away")

    async def _serve_one(self) -> bool:
        """Serve one request; returns whether there may be another one."""
        self.waiting_since_s = trio.current_time()
        try:
            request = await self._head()
            if request is None:
                return False
            self.waiting_since_s = math.inf
            self._wants_head_only = request.method == b"HEAD"
            headers: Headers = list(request.headers)
            _check_form(request, headers)
            # Not yet: if the token has changed, the guard ends connections that the old one
            # admitted.
            self.admitted = False
            verdict = self._served.guard.check(request.method, request.target, headers)
            if isinstance(verdict, Answer) and verdict.why:
                raise _RefusedError(verdict)  # noqa: TRY301
            held = BodyShare(self._served.bodies)
            try:
                if isinstance(verdict, AdmittedRequest):
                    self._admit()
                    body = await self._body(headers, held)
                    return await self._exchange(request, body, verdict.headers)
                await self._body(headers, held, most=0)
                await self._answer(verdict)
                return self._next_cycle()
            finally:
                held.free()
        except _RefusedError as refused:
            self._served.refused(refused.answer.why)
            await self._answer(refused.answer, last=True)
            await self._linger()
            return False

    def _admit(self) -> None:
        self.admitted = True
        if not self.welcome:
            self.welcome = True
            self._served.admitted()

    # What comes in.

    async def _head(self) -> h11.Request | None:
        """Read the head of the next request; None at the end."""
        head_bytes = len(self._h11.trailing_data[0])
        event = self._next_head()
        begun = head_bytes > 0 or bool(self._ahead)
        patience_s = HEAD_TIMEOUT_S if begun or not self.admitted else KEEP_ALIVE_S
        with trio.move_on_after(patience_s) as scope:
            while event is h11.NEED_DATA:
                if head_bytes >= MAX_HEAD_BYTES:
                    raise _no_http(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE)
                data = await self._read(_FRAME_BYTES)
                head_bytes += len(data)
                if not begun:
                    begun = True
                    scope.deadline = trio.current_time() + HEAD_TIMEOUT_S
                self._receive(data)
                event = self._next_head()
            return event if isinstance(event, h11.Request) else None
        if begun:
            raise _slow()
        return None

    async def _body(self, headers: Headers, held: BodyShare, most: int | None = None) -> bytes:
        """Read the body, which `held` counts and which has at most as many bytes as configured."""
        most = self._served.max_body_bytes if most is None else most
        said = next((value for name, value in headers if name == b"content-length"), b"0")
        if int(said) > most:  # h11 has checked that these are digits
            raise _too_large(most)
        body, framed = bytearray(), any(name == b"transfer-encoding" for name, _ in headers)
        with trio.move_on_after(BODY_TIMEOUT_S):
            if self._h11.they_are_waiting_for_100_continue:
                await self._write(CONTINUE)
            while True:
                event = self._next_event()
                if isinstance(event, h11.Data):
                    body += event.data
                    if len(body) > most:
                        raise _too_large(most)
                    if not held.grow(len(body)):
                        raise _no_room()
                elif isinstance(event, h11.EndOfMessage):
                    return bytes(body)
                elif event is h11.NEED_DATA:
                    if framed and _has_row_of_spaces(self._h11.trailing_data[0]):
                        raise _no_http(HTTPStatus.BAD_REQUEST)
                    self._receive(await self._read(_FRAME_BYTES if framed else _CHUNK_BYTES))
                else:
                    raise trio.BrokenResourceError
        raise _slow()

    async def _read(self, most: int) -> bytes:
        """Read the next bytes; empty at the end."""
        if not self._ahead and not self._ended:
            return bytes(await self._stream.receive_some(most))
        data = bytes(self._ahead[:most])
        del self._ahead[:most]
        await trio.lowlevel.checkpoint()
        return data

    def _receive(self, data: bytes | bytearray) -> None:
        try:
            self._h11.receive_data(bytes(data))
        except h11.RemoteProtocolError as error:
            raise _no_request(error) from None

    def _next_head(self) -> object:
        waiting = self._h11.trailing_data[0]
        end = _HEAD_END.search(waiting)
        head = waiting if end is None else waiting[: end.start()]
        if head.count(b"\n") > MAX_HEAD_LINES or _has_row_of_spaces(head):
            raise _no_http(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE)
        return self._next_event()

    def _next_event(self) -> object:
        try:
            return self._h11.next_event()
        except h11.RemoteProtocolError as error:
            raise _no_request(error) from None

    # What goes out.

    async def _exchange(self, request: h11.Request, body: bytes, headers: Headers) -> bool:
        exchange = Exchange(request, body, headers, self._write)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._watch, exchange)
            await exchange.run(self._served.application, self._client)
            nursery.cancel_scope.cancel()
        return exchange.whole and self._next_cycle()

    async def _watch(self, exchange: Exchange) -> None:
        """Notice when the client goes. Bytes that it sends meanwhile belong to the next request."""
        while len(self._ahead) < MAX_AHEAD_BYTES:
            try:
                data = await self._stream.receive_some(_CHUNK_BYTES)
            except (trio.BrokenResourceError, trio.ClosedResourceError):
                data = b""
            self._ahead += data
            if not data:
                self._ended = True
                exchange.client_gone()
                return

    async def _answer(self, answer: Answer, *, last: bool = False) -> None:
        if self._h11.our_state not in (h11.IDLE, h11.SEND_RESPONSE):
            return
        body = f"{answer.text}\n".encode() if answer.text else b""
        headers = [*answer.headers, (b"date", date())]
        if answer.status is not HTTPStatus.NO_CONTENT:
            headers.append((b"content-length", str(len(body)).encode()))
        if body:
            headers.append((b"content-type", b"text/plain; charset=utf-8"))
        if last:
            headers.append((b"connection", b"close"))
        await self._write(response(answer.status, headers))
        if body and not self._wants_head_only:
            await self._write(h11.Data(data=body))
        await self._write(h11.EndOfMessage())

    async def _write(self, event: h11.Event) -> None:
        """Send an event; `trio.BrokenResourceError` if the client is gone, or does not read."""
        data = self._h11.send(event) or b""
        for start in range(0, len(data), _SLICE_BYTES):
            with trio.move_on_after(WRITE_TIMEOUT_S) as scope:
                await self._stream.send_all(data[start : start + _SLICE_BYTES])
            if scope.cancelled_caught:
                log.info("a client over HTTP does not read its answers; its connection is closed")
                raise trio.BrokenResourceError

    def _next_cycle(self) -> bool:
        if self._h11.our_state is not h11.DONE or self._h11.their_state is not h11.DONE:
            return False
        self._h11.start_next_cycle()
        return True

    async def _linger(self) -> None:
        with trio.move_on_after(LINGER_S):
            await self._stream.send_eof()
            while await self._stream.receive_some(_CHUNK_BYTES):
                pass


class Exchange:
    """One request and its answer, which has these headers besides those of the application.

    Attributes:
        whole: the answer is complete.
    """

    def __init__(
        self,
        request: h11.Request,
        body: bytes,
        headers: Headers,
        write: Callable[[h11.Event], Awaitable[None]],
    ) -> None:
        self._request = request
        self._body: bytes | None = body
        self._headers = headers
        self._write = write
        self._gone = trio.Event()
        self._begun = False
        self.whole = False

    def client_gone(self) -> None:
        """Note that nobody waits for the answer any more."""
        self._gone.set()

    async def run(self, application: Application, client: str) -> None:
        """Let the application answer a client of that name."""
        try:
            await application(self._scope(client), self._receive, self._send)
        except Exception:  # the fault of one request must not end the others
            log.exception("a request over HTTP failed")
            if not self._begun and not self._gone.is_set():
                await self._fail()
            self.whole = False  # nothing more over this connection

    async def _fail(self) -> None:
        body = b"nsm failed to answer; the log of this server has the details.\n"
        await self._send(
            {
                "type": "http.response.start",
                "status": 500,
                "headers": [
                    (b"content-type", b"text/plain; charset=utf-8"),
                    (b"content-length", str(len(body)).encode()),
                ],
            }
        )
        await self._send({"type": "http.response.body", "body": body})

    def _scope(self, client: str) -> dict[str, Any]:
        path, _, query = self._request.target.partition(b"?")
        headers = [
            (name, value)
            for name, value in self._request.headers
            if name not in _NOT_FOR_APPLICATIONS
        ]
        return {
            "type": "http",
            "asgi": {"version": "3.0", "spec_version": "2.3"},
            "http_version": self._request.http_version.decode("ascii"),
            "method": self._request.method.decode("ascii"),
            "scheme": "http",
            "path": unquote(path.decode("latin-1")),
            "raw_path": path,
            "query_string": query,
            "root_path": "",
            "headers": headers,
            "client": (client, 0),
            "server": None,
        }

    async def _receive(self) -> Message:
        if self._body is not None:
            body, self._body = self._body, None
            return {"type": "http.request", "body": body, "more_body": False}
        await self._gone.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message: Message) -> None:
        if self._gone.is_set():
            await trio.lowlevel.checkpoint()  # it may send without end
            return
        try:
            match message["type"]:
                case "http.response.start":
                    self._begun = True
                    await self._write(response(message["status"], self._answer_headers(message)))
                case "http.response.body":
                    if body := message.get("body", b""):
                        await self._write(h11.Data(data=body))
                    if not message.get("more_body", False):
                        await self._write(h11.EndOfMessage())
                        self.whole = True
                case _:
                    await trio.lowlevel.checkpoint()  # an extension that was not offered
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            self._gone.set()

    def _answer_headers(self, message: Message) -> list[tuple[bytes, bytes]]:
        given = [
            (name, value)
            for name, value in message.get("headers", ())
            if name.lower() not in _OF_CONNECTIONS
        ]
        return [*given, *self._headers, (b"date", date())]


def _check_form(request: h11.Request, headers: Headers) -> None:
    """Refuse requests that h11 accepts: of other protocols, and with two lengths (RFC 9112, 6.3: a
    proxy may have used the other one, and take the rest for another request).
    """
    if request.http_version not in (b"1.0", b"1.1"):
        raise _no_http(HTTPStatus.HTTP_VERSION_NOT_SUPPORTED)
    if {b"content-length", b"transfer-encoding"} <= {name for name, _ in headers}:
        raise _no_http(HTTPStatus.BAD_REQUEST)


def _has_row_of_spaces(data: bytes) -> bool:
    return _SPACES in data.replace(b"\t", b" ")


def _slow() -> _RefusedError:
    return _refused(HTTPStatus.REQUEST_TIMEOUT, "The request took too long.", "slow")


def _too_large(most: int) -> _RefusedError:
    text = f"A body has at most {most} bytes."
    return _refused(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, text, "body")


def _no_room() -> _RefusedError:
    text = "Too much is being asked at once."
    return _refused(HTTPStatus.SERVICE_UNAVAILABLE, text, "memory", _RETRY_SOON)


def _no_request(error: h11.RemoteProtocolError) -> _RefusedError:
    # An error of h11 may quote the request, which may contain a secret.
    return _no_http(HTTPStatus(error.error_status_hint))


def _no_http(status: HTTPStatus) -> _RefusedError:
    return _refused(status, "This is not a request of HTTP/1.1.", "protocol")


def _refused(status: HTTPStatus, text: str, why: str, headers: Headers = ()) -> _RefusedError:
    return _RefusedError(Answer(status=status, text=text, why=why, headers=headers))


def response(status: int, headers: Headers) -> h11.Response:
    """Make the head of an answer, with the usual words for its status."""
    reason = HTTPStatus(status).phrase.encode()
    return h11.Response(status_code=status, headers=[*headers], reason=reason)


def date() -> bytes:
    """Time in the format of answers (RFC 9110, 6.6.1)."""
    return formatdate(usegmt=True).encode("ascii")
