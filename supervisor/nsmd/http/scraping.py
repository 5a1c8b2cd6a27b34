"""The metrics over HTTP, for Prometheus: one page, for few clients at a time.

Any user of the machine may connect to a port on loopback, and so may a web page in a browser that
was made to believe that a name is its own (DNS rebinding). So the Host header is checked, and there
is only this page. It needs no token, since it has no secrets.
"""

from __future__ import annotations

import logging
import socket
from collections.abc import Awaitable, Callable
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import trio

from nsm.http.listen_address import Port, own_hosts
from nsm.http.listening import accept
from nsmd.host.listeners import PlaceError, listening_socket
from nsmd.http.service import bound

if TYPE_CHECKING:
    from nsm.http.connection import Receive, Send, Served

log = logging.getLogger(__name__)

MAX_SCRAPES = 8
"""Scrapes at once. Further connections wait in the listener's queue."""

SCRAPE_TIMEOUT_S = 10.0
"""Time for a whole request and its answer: Prometheus' own default. A silent client is disconnected
after that.
"""

Text = Callable[[str], Awaitable[tuple[bytes, str]]]
"""Makes the metrics and their content type from an Accept header."""


SHARE = 0.2
"""Largest share of time for making pages, since any user may ask at a port."""


class Paced:
    """Makes one page at a time, with pauses in between."""

    def __init__(self, text: Text) -> None:
        self._text = text
        self._making = trio.Lock()
        self._rested_s = 0.0

    def __repr__(self) -> str:
        return f"<Paced, rested at {self._rested_s:.1f}>"

    async def __call__(self, accept: str) -> tuple[bytes, str]:
        """Make a page when it is its turn."""
        async with self._making:
            await trio.sleep_until(self._rested_s)
            began_s = trio.current_time()
            page = await self._text(accept)
            ended_s = trio.current_time()
            self._rested_s = ended_s + (ended_s - began_s) * (1 / SHARE - 1)
        return page


async def serve_metrics(path: str, port: int | None, text: Text) -> None:
    """Serve the metrics until cancelled; an address that cannot be used is logged, and left out.

    The path is that of a Unix socket, in a directory that only we can write.
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
                listeners.append(stack.enter_context(bound(Port("127.0.0.1", port))))
            except OSError as error:
                log.warning(
                    "no metrics on 127.0.0.1 port %d (%s): choose another [metrics] port",
                    port,
                    error.strerror,
                )
        async with trio.open_nursery() as nursery:
            for listener in listeners:
                nursery.start_soon(serve_scrapes, listener, paced)


async def serve_scrapes(listener: socket.socket, text: Text) -> None:
    """Serve one listening socket, Unix or TCP; never returns.

    Args:
        listener: non-blocking; the caller closes it.
    """
    room = trio.Semaphore(MAX_SCRAPES)
    served: Served | None = None
    async with trio.open_nursery() as nursery:
        while True:
            await room.acquire()
            stream = await accept(listener)
            if served is None:  # most supervisors are never asked, and need no HTTP
                served = _served(listener, text)
            nursery.start_soon(_serve, stream, served, room)


def _served(listener: socket.socket, text: Text) -> Served:
    from nsm.http.access import AccessCheck  # noqa: PLC0415  # see above
    from nsm.http.connection import Bodies, Served  # noqa: PLC0415

    hosts = None  # everybody who reaches a Unix socket may ask
    if listener.family != socket.AF_UNIX:
        number = listener.getsockname()[1]
        hosts = own_hosts(Port("127.0.0.1", number)) | own_hosts(Port("::1", number))

    async def page(scope: dict[str, Any], _receive: Receive, send: Send) -> None:
        accepted = b",".join(value for name, value in scope["headers"] if name == b"accept")
        body, kind = await text(accepted.decode("ascii", "replace"))
        length = str(len(body)).encode()
        headers = [(b"content-type", kind.encode()), (b"content-length", length)]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": body})

    return Served(
        guard=AccessCheck(
            hosts=hosts,
            path=b"/metrics",
            methods=(b"GET",),
            headers=((b"cache-control", b"no-store"), (b"connection", b"close")),
        ),
        application=page,
        refused=lambda why: log.debug("a request for metrics was refused for its %s", why),
        admitted=lambda: None,
        max_body_bytes=0,
        bodies=Bodies(0),
    )


async def _serve(stream: trio.SocketStream, served: Served, room: trio.Semaphore) -> None:
    from nsm.http.connection import Connection  # noqa: PLC0415  # as above

    try:
        with trio.move_on_after(SCRAPE_TIMEOUT_S):
            await Connection(stream, served, "metrics").serve()
    finally:
        room.release()
