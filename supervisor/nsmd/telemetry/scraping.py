"""The metrics over HTTP, for Prometheus: one page, for few clients at a time.

Whoever may connect to a port on loopback is any user of the machine, and a web page in a browser
that was made to believe that a name is its own (DNS rebinding): so the Host header is checked, and
there is nothing to ask for but the page.
"""

from __future__ import annotations

import errno
import logging
import socket
from collections.abc import Awaitable, Callable
from contextlib import ExitStack
from http import HTTPStatus
from typing import TYPE_CHECKING

import trio

from nsmd.host.unix_listener import PlaceError, listening_socket

if TYPE_CHECKING:
    import h11

log = logging.getLogger(__name__)

MAX_SCRAPES = 8
"""At once. Further connections wait in the listener's queue."""

SCRAPE_TIMEOUT_S = 10.0
"""For a whole request and its answer: Prometheus' own default. A client that says nothing is gone
after that."""

MAX_HEAD_BYTES = 16 * 1024
"""Of a request. Browsers on loopback send cookies of other programs."""

PAUSE_S = 1.0
"""After a connection could not be taken, for want of descriptors."""

PATH = "/metrics"

_CHUNK_BYTES = 4096
_SHORT_OF = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)

Text = Callable[[str], Awaitable[tuple[bytes, str]]]
"""From an Accept header to the metrics and their content type."""


SHARE = 0.2
"""Of the time is spent on pages at most, however many are asked for: any user may ask at a port."""


class Paced:
    """Makes one page at a time, and rests in between.

    Args:
        text: makes a page.
    """

    def __init__(self, text: Text) -> None:
        self._text = text
        self._making = trio.Lock()
        self._rested_s = 0.0

    def __repr__(self) -> str:
        return f"<Paced, rested at {self._rested_s:.1f}>"

    async def __call__(self, accept: str) -> tuple[bytes, str]:
        """A page, in its turn."""
        async with self._making:
            await trio.sleep_until(self._rested_s)
            began_s = trio.current_time()
            page = await self._text(accept)
            ended_s = trio.current_time()
            self._rested_s = ended_s + (ended_s - began_s) * (1 / SHARE - 1)
        return page


class _RefusedError(Exception):
    """A request that is not answered with the metrics."""

    def __init__(self, status: int, why: str) -> None:
        self.status = status
        super().__init__(why)


async def serve_metrics(path: str, port: int | None, text: Text) -> None:
    """Serve the metrics until cancelled; what cannot be listened at is logged, and left out.

    Args:
        path: of a Unix socket, in a directory that only we can write.
        port: on 127.0.0.1; None for none.
        text: makes the page.
    """
    paced = Paced(text)
    with ExitStack() as stack:
        listeners: list[socket.socket] = []
        try:
            listeners.append(stack.enter_context(listening_socket(path)))
        except PlaceError as error:
            log.warning("no socket for metrics: %s", error)
        if port is not None:
            try:
                listeners.append(stack.enter_context(_loopback(port)))
            except OSError as error:
                log.warning(
                    "no metrics on 127.0.0.1 port %d (%s): choose another [metrics] port",
                    port,
                    error.strerror,
                )
        async with trio.open_nursery() as nursery:
            for listener in listeners:
                nursery.start_soon(serve_scrapes, listener, paced)


def _loopback(port: int) -> socket.socket:
    """
    Raises:
        OSError: it is taken, or must not be had.
    """
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    try:
        # Connections of an earlier supervisor that linger on must not keep this one from it.
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(("127.0.0.1", port))
        listener.listen(MAX_SCRAPES)
        listener.setblocking(False)
    except OSError:
        listener.close()
        raise
    return listener


async def serve_scrapes(listener: socket.socket, text: Text) -> None:
    """Serve one listening socket, Unix or TCP; never returns.

    Args:
        listener: non-blocking; the caller's.
        text: makes the page.
    """
    waiting = trio.socket.from_stdlib_socket(listener)
    hosts = _hosts(listener)
    room = trio.Semaphore(MAX_SCRAPES)
    async with trio.open_nursery() as nursery:
        while True:
            await room.acquire()
            nursery.start_soon(_serve, await _accept(waiting), hosts, text, room)


async def _accept(listener: trio.socket.SocketType) -> trio.SocketStream:
    while True:
        try:
            accepted, _ = await listener.accept()
            return trio.SocketStream(accepted)
        except OSError as error:
            if error.errno in _SHORT_OF:
                log.warning("a request for metrics has to wait: %s", error.strerror)
                await trio.sleep(PAUSE_S)


def _hosts(listener: socket.socket) -> frozenset[bytes] | None:
    """Return the allowed Host headers; None for any: whoever reaches a Unix socket may ask."""
    if listener.family == socket.AF_UNIX:
        return None
    port = listener.getsockname()[1]
    names = ("127.0.0.1", "localhost", "[::1]")
    return frozenset(
        each.encode() for name in names for each in (f"{name}:{port}", *([name] * (port == 80)))
    )


async def _serve(
    stream: trio.SocketStream, hosts: frozenset[bytes] | None, text: Text, room: trio.Semaphore
) -> None:
    try:
        with trio.move_on_after(SCRAPE_TIMEOUT_S):
            async with stream:
                await _answer(stream, hosts, text)
    except (trio.BrokenResourceError, trio.ClosedResourceError):
        log.debug("a client of the metrics went away")
    except Exception:  # one request's fault is not the others'
        log.exception("a request for metrics failed")
    finally:
        room.release()


async def _answer(stream: trio.SocketStream, hosts: frozenset[bytes] | None, text: Text) -> None:
    try:
        request = await _request(stream)
        if request is None:
            return
        _check(request, hosts)
        accepted = b",".join(value for name, value in request.headers if name == b"accept")
        body, kind = await text(accepted.decode("ascii", "replace"))
        answer = _response(200, kind, body)
    except _RefusedError as refused:
        answer = _response(refused.status, "text/plain; charset=utf-8", f"{refused}\n".encode())
    await stream.send_all(answer)
    await stream.send_eof()
    # Closed with something unread, the kernel would take the answer back (tcp(7), RST).
    while await stream.receive_some(_CHUNK_BYTES):
        pass


async def _request(stream: trio.SocketStream) -> h11.Request | None:
    """The head of a request; None if the client went away without one.

    Raises:
        _RefusedError: it is none.
    """
    import h11  # noqa: PLC0415  # most supervisors are never asked

    connection = h11.Connection(h11.SERVER, max_incomplete_event_size=MAX_HEAD_BYTES)
    try:
        while (event := connection.next_event()) is h11.NEED_DATA:
            connection.receive_data(await stream.receive_some(_CHUNK_BYTES))
    except h11.RemoteProtocolError as error:
        raise _RefusedError(error.error_status_hint, f"This is no request: {error}") from None
    return event if isinstance(event, h11.Request) else None


def _response(status: int, kind: str, body: bytes) -> bytes:
    head = [
        f"HTTP/1.1 {status} {HTTPStatus(status).phrase}",
        f"Content-Type: {kind}",
        f"Content-Length: {len(body)}",
        "Cache-Control: no-store",
        "Connection: close",
        *(["Allow: GET"] if status == HTTPStatus.METHOD_NOT_ALLOWED else []),
    ]
    return "\r\n".join([*head, "", ""]).encode() + body


def _check(request: h11.Request, hosts: frozenset[bytes] | None) -> None:
    """
    Raises:
        _RefusedError: it is not to be answered.
    """
    given = [value.lower() for name, value in request.headers if name == b"host"]
    if hosts is not None and (len(given) != 1 or given[0] not in hosts):
        raise _RefusedError(403, "Ask for this by 127.0.0.1 or localhost, and its port.")
    if request.target.partition(b"?")[0] != PATH.encode():
        raise _RefusedError(404, f"There is nothing here but {PATH}.")
    if request.method != b"GET":
        raise _RefusedError(405, "There is nothing here but to GET.")
