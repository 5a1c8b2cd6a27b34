"""One connection from the jail: its requests, one after another.

HTTP/1.1 without bodies of requests. A request is for the proxy's own name, in the form for a proxy
(a whole URL) or in the form for a server (a path and `Host`); or it is `CONNECT`, on which the
proxy decides.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Awaitable, Callable, Iterable, Sequence
from http import HTTPStatus

import h11
import trio

from nsm.dataclass import dataclass
from nsmd.environments.packages.index_proxy.errors import FetchError
from nsmd.environments.packages.index_proxy.proxy_urls import BASE, HOST

log = logging.getLogger(__name__)

MAX_HEAD_BYTES = 32 * 1024

HEAD_TIMEOUT_S = 30.0
"""Time for a head, from its first byte."""

KEEP_ALIVE_S = 300.0
"""Time without a request. uv and npm compute between requests, and keep connections."""

WRITE_TIMEOUT_S = 300.0
"""Time within which a client must read some of what it gets: uv unpacks meanwhile."""

LINGER_S = 2.0
"""Time for a client to read a refusal, before its remaining bytes make the kernel drop it."""

MAX_REASON_CHARS = 300
"""Characters of an error in the first line of an answer."""

_PIECE_BYTES = 64 * 1024
_METHODS = frozenset({b"GET", b"HEAD"})
_HOSTS = frozenset({HOST, f"{HOST}:80"})

Headers = Sequence[tuple[bytes, bytes]]


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestHead:
    """One request.

    Attributes:
        method: `GET` or `HEAD`.
        path: path and query.
        headers: names in lower case.
    """

    method: bytes
    path: str
    headers: Headers

    def header(self, name: bytes) -> bytes:
        """Return a header's value; empty if there is none."""
        return next((value for each, value in self.headers if each == name), b"")


class Reply:
    """The answer to one request."""

    def __init__(self, send: Callable[[h11.Event], Awaitable[None]], *, is_head: bool) -> None:
        self._send = send
        self._is_head = is_head
        self.begun = False
        self.whole = False

    async def start(self, status: int, headers: Iterable[tuple[bytes, bytes]]) -> None:
        """Send the head; once."""
        self.begun = True
        reason = HTTPStatus(status).phrase if status in set(HTTPStatus) else ""
        await self._send(
            h11.Response(status_code=status, headers=list(headers), reason=reason.encode())
        )

    async def send(self, data: bytes) -> None:
        """Send a piece of the body; nothing for `HEAD`."""
        if data and not self._is_head:
            await self._send(h11.Data(data=data))

    async def end(self) -> None:
        """End the answer."""
        await self._send(h11.EndOfMessage())
        self.whole = True

    async def refuse(self, error: FetchError, *, last: bool = False) -> None:
        """Answer with an error; its sentence is also the reason, which is all that pip shows.

        Args:
            last: the connection is closed afterwards.
        """
        self.begun = True
        body = f"nsm: {error.detail}.\n".encode()
        reason = re.sub(r"[^\x20-\x7e]", "?", error.detail)[:MAX_REASON_CHARS].encode()
        headers = [
            (b"Content-Type", b"text/plain; charset=utf-8"),
            (b"Content-Length", str(len(body)).encode()),
            (b"Cache-Control", b"no-store"),
        ]
        if error.retry_after:
            headers.append((b"Retry-After", error.retry_after))
        if last:
            headers.append((b"Connection", b"close"))
        await self._send(h11.Response(status_code=error.status, headers=headers, reason=reason))
        await self.send(body)
        await self.end()


Handler = Callable[[RequestHead, Reply], Awaitable[None]]
Tunnel = Callable[[str, trio.SocketStream, bytes], Awaitable[None]]
"""Serves `CONNECT`, given its target, the client, and bytes that the client has sent already."""


async def serve_connection(stream: trio.SocketStream, handle: Handler, tunnel: Tunnel) -> None:
    """Serve one connection, and close it."""
    async with stream:
        try:
            connection = _Connection(stream, handle, tunnel)
            while await connection.serve_one():
                pass
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            log.debug("a client in the jail went away")
        except h11.LocalProtocolError:
            # For example a body of another length than the index said. The error is not logged: it
            # may quote what an index sent.
            log.info("an answer of an index did not fit its own head; the connection is closed")


class _Connection:
    def __init__(self, stream: trio.SocketStream, handle: Handler, tunnel: Tunnel) -> None:
        self._stream = stream
        self._handle = handle
        self._tunnel = tunnel
        self._h11 = h11.Connection(h11.SERVER, max_incomplete_event_size=MAX_HEAD_BYTES)

    async def serve_one(self) -> bool:
        """Serve one request; returns whether there may be another one."""
        try:
            event = await self._head()
            if not isinstance(event, h11.Request):
                return False
            if event.method == b"CONNECT":
                rest, _ = self._h11.trailing_data
                await self._tunnel(event.target.decode("latin-1"), self._stream, rest)
                return False
            head = _checked(event)
            if not isinstance(await self._next(), h11.EndOfMessage):
                raise _bad("a request with a body is not accepted")
        except h11.RemoteProtocolError:
            await self._refuse(_bad("this is no request of HTTP/1.1"))
            return False
        except FetchError as error:
            await self._refuse(error)
            return False
        reply = Reply(self._send, is_head=head.method == b"HEAD")
        try:
            await self._handle(head, reply)
        except FetchError as error:
            if reply.begun:
                return False  # closed in the middle: the client notices that this is not all
            await reply.refuse(error)
        if not reply.whole or self._h11.our_state is not h11.DONE:
            return False
        self._h11.start_next_cycle()
        return True

    async def _head(self) -> h11.Request | h11.ConnectionClosed | None:
        with trio.move_on_after(KEEP_ALIVE_S) as patience:
            if self._h11.trailing_data[0]:
                patience.deadline = trio.current_time() + HEAD_TIMEOUT_S
            while (event := self._h11.next_event()) is h11.NEED_DATA:
                data = await self._stream.receive_some(_PIECE_BYTES)
                patience.deadline = min(patience.deadline, trio.current_time() + HEAD_TIMEOUT_S)
                self._h11.receive_data(bytes(data))
            return event if isinstance(event, h11.Request | h11.ConnectionClosed) else None
        return None

    async def _next(self) -> object:
        with trio.move_on_after(HEAD_TIMEOUT_S):
            while (event := self._h11.next_event()) is h11.NEED_DATA:
                self._h11.receive_data(bytes(await self._stream.receive_some(_PIECE_BYTES)))
            return event
        return None

    async def _send(self, event: h11.Event) -> None:
        data = self._h11.send(event) or b""
        for start in range(0, len(data), _PIECE_BYTES):
            with trio.move_on_after(WRITE_TIMEOUT_S) as patience:
                await self._stream.send_all(data[start : start + _PIECE_BYTES])
            if patience.cancelled_caught:
                raise trio.BrokenResourceError

    async def _refuse(self, error: FetchError) -> None:
        if self._h11.our_state not in (h11.IDLE, h11.SEND_RESPONSE):
            return
        await Reply(self._send, is_head=False).refuse(error, last=True)
        with trio.move_on_after(LINGER_S):
            await self._stream.send_eof()
            while await self._stream.receive_some(_PIECE_BYTES):
                pass


def _checked(request: h11.Request) -> RequestHead:
    """Check a request's head.

    Raises:
        FetchError: it is not for this proxy.
    """
    headers = [(name.lower(), value) for name, value in request.headers]
    if request.http_version not in (b"1.0", b"1.1"):
        raise _bad("this is no request of HTTP/1.1")
    if request.method not in _METHODS:
        raise FetchError(
            HTTPStatus.METHOD_NOT_ALLOWED, "packages can be fetched, and nothing can be sent"
        )
    target = request.target.decode("latin-1")
    if target.startswith("/"):
        hosts = {value.decode("latin-1").lower() for name, value in headers if name == b"host"}
        if len(hosts) != 1 or not hosts <= _HOSTS:
            raise elsewhere()
        return RequestHead(method=request.method, path=target, headers=headers)
    for base in (f"{BASE}/", f"{BASE}:80/"):
        if target.lower().startswith(base):
            return RequestHead(method=request.method, path=target[len(base) - 1 :], headers=headers)
    raise elsewhere()


def elsewhere() -> FetchError:
    """Return the error for a request to another host."""
    return FetchError(
        HTTPStatus.FORBIDDEN,
        "a build reaches nothing but the user's package indexes and hosts that the user lists",
    )


def _bad(detail: str) -> FetchError:
    return FetchError(HTTPStatus.BAD_REQUEST, detail)
