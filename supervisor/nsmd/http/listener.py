"""One listening socket and its connections."""

from __future__ import annotations

import logging
import os
import socket
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import trio

from nsm.http.access import PATH, AccessCheck
from nsm.http.connection import Application, Bodies, Connection, Served
from nsm.http.listen_address import Port, UnixPath, own_hosts, own_url, parse_listen
from nsm.http.listening import ConnectionLimit, accept
from nsm.http.token import TokenFile
from nsmd.control.outgoing import CountedStream
from nsmd.host.listeners import check_way, listening_socket
from nsmd.host.paths import trusted_owners
from nsmd.http.service import bound
from nsmd.model.events import Events
from nsmd.model.limits import ReadRate
from nsmd.model.settings import HttpSettings
from nsmd.telemetry import Traffic

log = logging.getLogger(__name__)

CONNECTIONS_PER_S = 200.0
"""Connections accepted per second in the long run; more wait in the kernel. Clients keep theirs; a
refused one has to come again, and any user of the machine may try. This costs less than a tenth of
a processor.
"""

CONNECTIONS_BURST = 500
"""Largest number of them at once."""

MAX_BODIES = 4
"""Bodies of the largest size that are held at once, for all clients together."""

PROTOCOL = "http"
"""Name under which such clients are counted."""

_MEGABYTE = 1024 * 1024

Bind = Callable[[Port], socket.socket]


class HttpListener:
    """One listening socket with its connections."""

    def __init__(
        self,
        settings: HttpSettings,
        token_path: str,
        application: Application,
        *,
        events: Events,
        traffic: Traffic,
        bind: Bind = bound,
    ) -> None:
        self._settings = settings
        self._bind = bind
        self._application = application
        self._events = events
        self._traffic = traffic
        self._connections = ConnectionLimit(settings.max_connections)
        self._bodies = Bodies(MAX_BODIES * settings.max_body_mb * _MEGABYTE)
        self._refused: Counter[str] = Counter()
        self.secret = TokenFile(token_path, self._connections.end_admitted)
        self.url = ""

    def __repr__(self) -> str:
        return f"<HttpListener {self.url} {self._connections}>"

    def facts(self) -> dict[str, Any]:
        """Facts for people."""
        return {
            "connections": len(self._connections),
            "displaced": self._connections.displaced,
            "refused": dict(self._refused),
        }

    def open(self, stack: ExitStack) -> tuple[socket.socket, AccessCheck]:
        """Open a listening socket; it is closed with the stack.

        Raises `PlaceError` or `OSError`.
        """
        hosts = None
        match parse_listen(self._settings.listen):
            case UnixPath(path=path):
                check_way(os.path.dirname(path), trusted_owners())
                listener = stack.enter_context(listening_socket(path))
                root = "http://localhost"
            case Port(host=host) as port:
                listener = stack.enter_context(self._bind(port))
                port = Port(host, listener.getsockname()[1])
                hosts, root = own_hosts(port), own_url(port)
        self.url = root + PATH.decode()
        self.secret.prepare()
        guard = AccessCheck(
            hosts=None if hosts is None else hosts | {*self._settings.hosts},
            own_origins=frozenset(f"http://{host}" for host in hosts or ()),
            origins=frozenset(self._settings.origins),
            secret=self.secret,
        )
        return listener, guard

    async def serve(self, listener: socket.socket, guard: AccessCheck) -> None:
        """Serve until cancelled."""
        read_rate = ReadRate(CONNECTIONS_PER_S, CONNECTIONS_BURST)
        async with trio.open_nursery() as nursery:
            while True:
                stream = CountedStream(await accept(listener), self._traffic)
                nursery.start_soon(self._serve_one, stream, guard)
                await read_rate.taken(1)

    async def _serve_one(self, stream: trio.abc.HalfCloseableStream, guard: AccessCheck) -> None:
        connection = Connection(stream, self._served(guard), self._settings.listen)
        try:
            await self._connections.serve(connection)
        finally:
            if connection.welcome:
                self._events.publish("client_left", protocol=PROTOCOL)

    def _served(self, guard: AccessCheck) -> Served:
        return Served(
            guard=guard,
            application=self._application,
            refused=self._note_refusal,
            admitted=self._note_client,
            max_body_bytes=self._settings.max_body_mb * _MEGABYTE,
            bodies=self._bodies,
        )

    def _note_client(self) -> None:
        self._events.publish("client_came", protocol=PROTOCOL)

    def _note_refusal(self, why: str) -> None:
        self._refused[why] += 1
        if (count := self._refused[why]) & (count - 1) == 0:  # the 1st, 2nd, 4th, 8th, ...
            log.warning("MCP over HTTP: %d requests refused for their %s", count, why)
