"""Listens for MCP clients over HTTP, and puts the parts together."""

from __future__ import annotations

import errno
import importlib
import logging
import os
import socket
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager, ExitStack
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Protocol, cast

import trio

from nsm.wire.errors import BadProjectError, NsmError
from nsmd.boundary import Boundary
from nsmd.hostpaths import trusted_owners
from nsmd.http.secret import Secret
from nsmd.listening import PlaceError, check_way, listening_socket
from nsmd.loopback import Port, UnixPath, own_hosts, own_url, parse_listen
from nsmd.mcp.attach import Attach
from nsmd.mcp.seam import Programs, Runner
from nsmd.settings import HttpSettings
from nsmd.values import ProjectMount

if TYPE_CHECKING:
    from nsmd.http.connection import Served
    from nsmd.http.exchange import Application, Receive, Send

log = logging.getLogger(__name__)

BACKLOG = 128
"""Connections that the kernel holds while the supervisor is busy."""

PAUSE_S = 1.0
"""After a connection could not be taken, for want of descriptors, and after a fault of ours."""

PATH = "/mcp"

_SHORT_OF = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
_MEGABYTE = 1024 * 1024


Check = Callable[[str], ProjectMount]
"""The mount of a directory for sessions; raises BadProjectError where there can be none."""

SCOPE = "http"
"""Of all sessions of clients over HTTP: who has the token may use any of them."""


class OpenFront(Protocol):
    """`nsmd.http.front.open_front`."""

    def __call__(
        self,
        attach: Attach,
        runner: Runner,
        programs: Programs | None,
        *,
        max_result_chars: int,
        max_body_bytes: int,
    ) -> AbstractAsyncContextManager[Application]:
        """While the block lasts, what it gives answers requests."""
        ...


class HttpService:
    """See the module.

    Args:
        settings: `[http]`.
        token_path: of the file with the secret.
        runner: takes the calls.
        programs: those of the bridge.
        check: finds the mount of `[http] project`.
        loaded: waits until the endpoint has been imported; raises NsmError if it cannot be.
        max_result_chars: `[mcp] max_result_chars`.
    """

    def __init__(
        self,
        settings: HttpSettings,
        token_path: str,
        runner: Runner,
        programs: Programs | None,
        check: Check,
        loaded: Callable[[], Awaitable[object]],
        *,
        max_result_chars: int,
    ) -> None:
        self._settings = settings
        self._secret = Secret(token_path)
        self._runner = runner
        self._programs = programs
        self._check = check
        self._loaded = loaded
        self._max_result_chars = max_result_chars
        self._problem = ""
        self._url = ""
        self._front: Application | None = None
        self._front_wanted = trio.Event()
        self._front_ready = trio.Event()
        self._refused: Counter[str] = Counter()
        self._crowd: Any = None

    def __repr__(self) -> str:
        return f"<HttpService {self._url or self._problem or 'not begun'}>"

    def facts(self) -> dict[str, Any]:
        """For people and the doctor."""
        self._secret.look()
        return {
            "enabled": self._settings.enabled,
            "listen": self._settings.listen,
            "url": self._url,
            "problem": self._problem or self._secret.problem,
            "connections": len(self._crowd) if self._crowd is not None else 0,
            "max_connections": self._settings.max_connections,
            "refused": dict(self._refused),
        }

    async def serve(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Serve until cancelled; what cannot be listened at is logged, and left out."""
        if not self._settings.enabled:
            task_status.started()
            return
        with ExitStack() as stack:
            try:
                listener, hosts = self._listen(stack)
            except (PlaceError, OSError) as error:
                self._problem = f"{self._settings.listen} cannot be listened at: {error}"
                log.error("no MCP over HTTP: %s", self._problem)  # noqa: TRY400
                task_status.started()
                return
            self._secret.prepare()
            served = self._served(hosts)
            log.info("MCP over HTTP: %s", self._url)
            task_status.started()
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._keep_front)
                await self._accept_all(listener, served, nursery)

    def _listen(self, stack: ExitStack) -> tuple[socket.socket, frozenset[str] | None]:
        """
        Raises:
            PlaceError, OSError: it cannot be.
        """
        match parse_listen(self._settings.listen):
            case UnixPath(path=path):
                check_way(os.path.dirname(path), trusted_owners())
                listener = stack.enter_context(listening_socket(path))
                self._url = f"http://localhost{PATH}"
                return listener, None
            case Port(host=host) as port:
                listener = stack.enter_context(_bound(port))
                port = Port(host, listener.getsockname()[1])
                self._url = own_url(port) + PATH
                return listener, own_hosts(port)

    def _served(self, hosts: frozenset[str] | None) -> Served:
        # Most supervisors never serve HTTP.
        from nsmd.http.connection import Served  # noqa: PLC0415
        from nsmd.http.crowd import Crowd  # noqa: PLC0415
        from nsmd.http.guard import Guard  # noqa: PLC0415

        self._crowd = Crowd(self._settings.max_connections)
        guard = Guard(
            hosts=None if hosts is None else hosts | {*self._settings.hosts},
            own_origins=frozenset(f"http://{host}" for host in hosts or ()),
            origins=frozenset(self._settings.origins),
            secret=self._secret,
        )
        return Served(
            guard=guard,
            application=self._answer,
            refused=self._note_refusal,
            max_body_bytes=self._settings.max_body_mb * _MEGABYTE,
        )

    def _note_refusal(self, why: str) -> None:
        self._refused[why] += 1
        if (count := self._refused[why]) & (count - 1) == 0:  # the 1st, 2nd, 4th, 8th, ...
            log.warning("MCP over HTTP: %d requests refused for their %s", count, why)

    # Connections.

    async def _accept_all(
        self, listener: socket.socket, served: Served, nursery: trio.Nursery
    ) -> None:
        from nsmd.http.connection import Connection  # noqa: PLC0415

        waiting = trio.socket.from_stdlib_socket(listener)
        while True:
            try:
                accepted, _ = await waiting.accept()
            except OSError as error:
                if error.errno in _SHORT_OF:
                    log.warning("a client over HTTP has to wait: %s", error.strerror)
                    await trio.sleep(PAUSE_S)
                continue
            stream = trio.SocketStream(accepted)
            connection = Connection(stream, served, self._settings.listen)
            nursery.start_soon(self._serve_one, connection)

    async def _serve_one(self, connection: Any) -> None:
        from nsmd.http.guard import Answer  # noqa: PLC0415

        if not self._crowd.admit(connection):
            self._note_refusal("number")
            full = Answer(
                status=HTTPStatus.SERVICE_UNAVAILABLE,
                text="There are too many connections.",
                headers=((b"retry-after", b"1"),),
            )
            await connection.refuse(full)
            return
        try:
            await connection.serve()
        finally:
            self._crowd.leave(connection)

    # The endpoint.

    async def _answer(self, scope: dict[str, Any], receive: Receive, send: Send) -> None:
        self._front_wanted.set()
        await self._front_ready.wait()
        if self._front is None:
            await _unavailable(send)
        else:
            await self._front(scope, receive, send)

    async def _keep_front(self) -> None:
        """Have something that answers; a fault of it ends its sessions, and nothing else."""
        attach = Attach().kept_to(self._boundary(), confined=True)
        await self._front_wanted.wait()
        try:
            await self._loaded()
        except NsmError as error:
            self._problem = str(error)
            self._front_ready.set()
            return
        open_front = await trio.to_thread.run_sync(_import_front, abandon_on_cancel=True)
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
            except Exception:  # the one catch-all of this listener
                log.exception("MCP over HTTP failed; its sessions are over")
            self._front_ready = trio.Event()
            await trio.sleep(PAUSE_S)

    def _boundary(self) -> Boundary:
        """What all clients are kept to."""
        settings, project = self._settings, None
        if settings.project is not None:
            try:
                project = self._check(settings.project)
            except BadProjectError as error:
                self._problem = f"project: {error.message}"
                log.error("MCP over HTTP shows no project: %s", error.message)  # noqa: TRY400
        return Boundary(
            scope=SCOPE,
            directory=None if project is None else project.path,
            project=project,
            network=settings.network_rule,
            programs=settings.programs,
        )


async def _unavailable(send: Send) -> None:
    await send(
        {"type": "http.response.start", "status": 503, "headers": [(b"content-length", b"0")]}
    )
    await send({"type": "http.response.body"})


def _bound(port: Port) -> socket.socket:
    """
    Raises:
        OSError: it is taken, or must not be had.
    """
    family = socket.AF_INET6 if ":" in port.host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        # Connections of an earlier supervisor that linger on must not keep this one from it.
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((port.host, port.number))
        listener.listen(BACKLOG)
        listener.setblocking(False)
    except OSError:
        listener.close()
        raise
    return listener


def _import_front() -> OpenFront:
    return cast("OpenFront", importlib.import_module("nsmd.http.front").open_front)
