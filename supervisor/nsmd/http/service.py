"""MCP over HTTP, if configured: a listener, and the application behind it.

The port is held from one supervisor to the next. If another program could listen there while no
supervisor does, the next client would show it the token: a box with the host's network, or another
user of the machine. So the socket is kept like sessions, in the descriptor store, and connections
that come meanwhile wait in it.
"""

from __future__ import annotations

import errno
import importlib
import logging
import os
import socket
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import ExitStack, suppress
from typing import TYPE_CHECKING, Any

import trio

from nsm.http.listen_address import Port, parse_listen
from nsm.wire.errors import BadProjectError, NsmError
from nsmd.bridge.bridge import BridgeService
from nsmd.fdstore.store import DescriptorStore
from nsmd.host.listeners import PlaceError, tcp_listener
from nsmd.manager.run_service import RunService
from nsmd.mcp.attachment import TAKEN_BACK, Attach
from nsmd.model.events import Events
from nsmd.model.limits import ClientLimits
from nsmd.model.settings import HttpSettings, Settings
from nsmd.model.values import ProjectMount
from nsmd.telemetry import Traffic

if TYPE_CHECKING:
    from nsm.http.connection import Application, Receive, Send
    from nsmd.http.listener import HttpListener


log = logging.getLogger(__name__)

HTTP_PORT = "http-port"
"""Name in the store."""

BACKLOG = 128
"""Connections that the kernel holds while the supervisor is busy or away."""


class HeldPort:
    """Listening port, passed from one supervisor to the next.

    Args:
        kept: descriptors of an earlier supervisor; owned from now on.
    """

    def __init__(self, store: DescriptorStore, kept: Sequence[int] = ()) -> None:
        self._store = store
        self._earlier = list(_sockets(kept))
        self._kept = len(kept)
        self._held: socket.socket | None = None

    def __repr__(self) -> str:
        return f"<HeldPort {self._held or 'of nothing'}>"

    def listen(self, port: Port) -> socket.socket:
        """Return a socket that listens there: that of the earlier supervisor, or a new one.

        Raises `OSError`.
        """
        self._held = next((each for each in self._earlier if _listens_at(each, port)), None)
        if self._held is None or self._kept > 1:
            # Not all kept sockets are wanted, and systemd would keep another one beside it.
            self._drop()
        try:
            if self._held is None:
                self._held = bound(port)
            self._store.keep(HTTP_PORT, [self._held.fileno()])
            self._kept = 1
            return self._held.dup()
        except OSError:
            self.forget()
            raise

    def forget(self) -> None:
        """Release the port: nobody should listen any more."""
        self._drop()
        self.close()

    def close(self) -> None:
        """Close it, as the end of this process would: the kept copy stays."""
        if self._held is not None:
            self._held.close()
            self._held = None

    def everything_kept(self) -> Iterator[tuple[str, Sequence[int]]]:
        if self._held is not None:
            yield HTTP_PORT, [self._held.fileno()]

    def _drop(self) -> None:
        """Remove the kept copies, and close all of the earlier supervisor's sockets that are not
        held.
        """
        if self._kept:
            self._store.drop(HTTP_PORT)
            self._kept = 0
        for earlier in self._earlier:
            if earlier is not self._held:
                earlier.close()
        self._earlier = []


def _sockets(kept: Sequence[int]) -> Iterator[socket.socket]:
    """Yield the sockets among kept descriptors, and close anything else: that is no reason not to
    start.
    """
    for descriptor in kept:
        try:
            yield socket.socket(fileno=descriptor)
        except OSError as error:
            log.warning("what was kept as %s is not a socket: %s", HTTP_PORT, error.strerror)
            os.close(descriptor)


def bound(port: Port) -> socket.socket:
    """Make a socket that listens. Raises `OSError`."""
    return tcp_listener(port.host, port.number, BACKLOG)


def _listens_at(listener: socket.socket, port: Port) -> bool:
    """Return whether the listener is at the address where `bound` would listen."""
    with suppress(OSError):
        os.set_inheritable(listener.fileno(), False)
        listener.setblocking(False)
        if listener.family not in (socket.AF_INET, socket.AF_INET6):
            return False
        if not listener.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
            return False
        host, number = listener.getsockname()[:2]
        return host == port.host and port.number in (0, number)
    return False


PAUSE_S = 1.0
"""Pause after a bug of ours."""

SCOPE = "http"
"""Scope of all sessions of clients over HTTP: everybody with the token may use any of them."""

_MEGABYTE = 1024 * 1024

Check = Callable[[str], ProjectMount]
"""Finds the mount of a directory for sessions; raises BadProjectError if there can be none."""


class HttpService:
    """Service of MCP over HTTP.

    Args:
        loaded: waits until the endpoint has been imported; raises NsmError if it cannot be.
        port: held from one supervisor to the next; None for a new one.
    """

    def __init__(
        self,
        settings: Settings,
        token_path: str,
        *,
        runner: RunService,
        programs: BridgeService,
        check: Check,
        loaded: Callable[[], Awaitable[object]],
        ending: Callable[[], bool],
        events: Events,
        traffic: Traffic,
        port: HeldPort | None = None,
    ) -> None:
        self._settings = settings.http
        self._port = port
        self._max_result_chars = settings.mcp.max_result_chars
        self._token_path = token_path
        self._runner = runner
        self._programs = programs
        self._check = check
        self._loaded = loaded
        self._ending = ending
        self._events = events
        self._traffic = traffic
        self._problem = ""
        self._listener: HttpListener | None = None
        self._front: Application | None = None
        self._front_wanted = trio.Event()
        self._front_ready = trio.Event()

    def __repr__(self) -> str:
        return f"<HttpService {self._listener or self._problem or 'off'}>"

    def facts(self) -> dict[str, Any]:
        """Facts for people. Also checks the token's file."""
        url, problem, token, listener = "", self._problem, False, self._listener
        counted: dict[str, Any] = {"connections": 0, "displaced": 0, "refused": {}}
        if listener is not None:
            listener.secret.look()
            token = not listener.secret.problem
            url, problem, counted = (
                listener.url,
                problem or listener.secret.problem,
                listener.facts(),
            )
        return {
            "enabled": self._settings.enabled,
            "listen": self._settings.listen,
            "url": url,
            "problem": problem,
            "token": token,
            "max_connections": self._settings.max_connections,
            **counted,
        }

    async def serve(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Serve until cancelled; an address that cannot be used is logged, and left out."""
        if self._port is not None and not _at_a_port(self._settings):
            self._port.forget()
        if not self._settings.enabled:
            task_status.started()
            return
        from nsmd.http.listener import HttpListener  # noqa: PLC0415  # most supervisors need none

        listener = HttpListener(
            self._settings,
            self._token_path,
            self._answer,
            events=self._events,
            traffic=self._traffic,
            bind=bound if self._port is None else self._port.listen,
        )
        with ExitStack() as stack:
            try:
                opened = listener.open(stack)
            except (PlaceError, OSError) as error:
                self._problem = (
                    f"{self._settings.listen} cannot be listened at: {_why(error)}. Once that, or "
                    "`[http] listen`, is another, `nsm reload` tries again"
                )
                if isinstance(error, OSError) and error.errno == errno.EADDRINUSE:
                    # Clients that connect to another program there would show it the token.
                    self._problem += (
                        ". If what listens there is not yours, clients may have shown it the "
                        "token: `nsm http token --rotate`"
                    )
                log.error("no MCP over HTTP: %s", self._problem)  # noqa: TRY400
                task_status.started()
                return
            self._listener = listener
            log.info("MCP over HTTP: %s", listener.url)
            client_limits = self._client_limits()
            task_status.started()
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._keep_front, client_limits)
                await listener.serve(*opened)

    def _client_limits(self) -> ClientLimits:
        """Return the limits of all clients."""
        settings, project = self._settings, None
        if settings.project is not None:
            try:
                project = self._check(settings.project)
            except BadProjectError as error:
                self._problem = f"project: {error.message}"
                log.error("MCP over HTTP shows no project: %s", error.message)  # noqa: TRY400
        return ClientLimits(
            scope=SCOPE,
            directory=None if project is None else project.path,
            project=project,
            network=settings.network_rule,
            programs=settings.programs,
        )

    async def _answer(self, scope: dict[str, Any], receive: Receive, send: Send) -> None:
        self._front_wanted.set()
        await self._front_ready.wait()
        if self._front is None:
            await _unavailable(send)
        else:
            # A call that is cancelled because the supervisor ends continues under the next one.
            scope[TAKEN_BACK] = lambda: not self._ending()
            await self._front(scope, receive, send)

    async def _keep_front(self, client_limits: ClientLimits) -> None:
        """Keep an application open, once a request has come. A fault of it ends its sessions, and
        nothing else.
        """
        attach = Attach().kept_to(client_limits, confined=True)
        await self._front_wanted.wait()
        try:
            await self._loaded()
        except NsmError as error:
            self._problem = str(error)
            self._front_ready.set()
            return
        name = "nsmd.http.asgi_app"
        await trio.to_thread.run_sync(importlib.import_module, name, abandon_on_cancel=True)
        from nsmd.http.asgi_app import open_front  # noqa: PLC0415  # as the thread has, by now

        while True:
            try:
                async with open_front(
                    attach,
                    self._runner,
                    self._programs,
                    max_result_chars=self._max_result_chars,
                    max_body_bytes=self._settings.max_body_mb * _MEGABYTE,
                ) as front:
                    self._front = front
                    self._front_ready.set()
                    await trio.sleep_forever()
            except Exception:  # the only catch-all behind this listener
                log.exception("MCP over HTTP failed; its sessions are over")
            self._front_ready = trio.Event()
            await trio.sleep(PAUSE_S)


def _at_a_port(settings: HttpSettings) -> bool:
    return settings.enabled and isinstance(parse_listen(settings.listen), Port)


async def _unavailable(send: Send) -> None:
    headers = [(b"content-length", b"0")]
    await send({"type": "http.response.start", "status": 503, "headers": headers})
    await send({"type": "http.response.body"})


def _why(error: PlaceError | OSError) -> str:
    text = error.strerror if isinstance(error, OSError) else None  # without its number
    return (text or str(error)).rstrip(".")
