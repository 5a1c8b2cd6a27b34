"""The server: a port of loopback, the keys, and a client of the supervisor for each key.

The application behind it finds the key and the sandbox of a request, and who answers it.
"""

from __future__ import annotations

import logging
import os
import socket
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING

import trio

from nsm import AsyncClient, paths
from nsm.dataclass import dataclass, replace
from nsm.http import token as httptoken
from nsm.http.connection import Bodies, Connection, Served
from nsm.http.listen_address import Port, own_hosts, own_url
from nsm.http.listening import ConnectionLimit, accept
from nsm.http.token import TokenFile
from nsm.integrations.e2b import access, contexts, control, files, processes
from nsm.integrations.e2b.access import RPC, Key, KeyCheck
from nsm.integrations.e2b.errors import RefusalError, gone, refusal_of
from nsm.integrations.e2b.files import MAX_UPLOAD_BYTES
from nsm.integrations.e2b.requests import ConnectStream, HttpRequest, error_of, is_stream
from nsm.integrations.e2b.sandboxes import Sandboxes
from nsm.wire.errors import BadProjectError, BadRequestError, NsmError, StartFailedError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from typing import Any

    from nsm.http.connection import Receive, Send
    from nsm.integrations.e2b.sandboxes import E2bSandbox, ServeSettings

log = logging.getLogger(__name__)

_PROCESS, _FILESYSTEM = (path.decode() for path in RPC)

KEY_COMMAND = "nsm e2b key"
KEY_PREFIX = "e2b_"
"""Beginning of keys: earlier clients refuse others."""

BACKLOG = 128

MAX_CONNECTIONS = 512
"""Connections at once. A client has one for each call that runs."""

MAX_BODIES_BYTES = 512 * 1024 * 1024
"""Bodies in memory at once, of all clients together."""

WORKSPACE = "/workspace"
"""Home directory where sessions can have no copy of a directory."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ready:
    """Facts about a server that takes requests.

    Attributes:
        url: its address.
        keys: names and keys.
        settings: as they are in force.
        note: what differs from the usual, and why; empty if nothing does.
    """

    url: str
    keys: tuple[tuple[str, str], ...]
    settings: ServeSettings
    note: str = ""


def key_path(name: str) -> str:
    """The file of a key."""
    return os.path.join(paths.state_dir(), "e2b", f"key-{name}")


def key(name: str, *, rotate: bool = False) -> str:
    """A key, which is made where it is missing.

    Raises:
        TokenError: its file can't be read or written.
    """
    make = httptoken.rotate if rotate else httptoken.ensure
    return make(key_path(name), command=KEY_COMMAND, prefix=KEY_PREFIX)


async def serve(
    port: Port,
    names: Sequence[str],
    settings: ServeSettings,
    on_ready: Callable[[Ready], object],
    *,
    socket_path: str | None = None,
) -> None:
    """Serve until cancelled.

    Args:
        port: where to listen.
        names: names of the keys.
        on_ready: called once requests are taken.
        socket_path: the supervisor's socket; None for the usual one.

    Raises:
        NsmError: there is no supervisor, or no sandbox can be made as the settings say.
        TokenError: a key can't be read.
        OSError: the port is taken.
    """
    tokens = tuple((name, key(name)) for name in names)
    async with AsyncExitStack() as stack:
        listener = stack.enter_context(_listening(port))
        port = Port(port.host, listener.getsockname()[1])
        limit = ConnectionLimit(MAX_CONNECTIONS)
        keys = [
            Key(name, TokenFile(key_path(name), limit.end_admitted, command=KEY_COMMAND))
            for name in names
        ]
        clients = [
            await stack.enter_async_context(
                AsyncClient(scope=each.scope, name="e2b", project=None, socket_path=socket_path)
            )
            for each in keys
        ]
        settings, note = await _tried(Sandboxes(keys[0], clients[0], settings))
        sandboxes = {
            each.name: Sandboxes(each, client, settings)
            for each, client in zip(keys, clients, strict=True)
        }
        for each in sandboxes.values():
            await each.learn_envs()
        check = KeyCheck(own_hosts(port), keys)
        served = Served(
            guard=check,
            application=Application(check, sandboxes),
            refused=lambda why: log.info("a request was refused for its %s", why),
            admitted=lambda: None,
            max_body_bytes=MAX_UPLOAD_BYTES,
            bodies=Bodies(MAX_BODIES_BYTES),
        )
        nursery = await stack.enter_async_context(trio.open_nursery())
        for each in sandboxes.values():
            nursery.start_soon(each.end_in_time)
        on_ready(Ready(url=own_url(port), keys=tokens, settings=settings, note=note))
        while True:
            stream = await accept(listener)
            nursery.start_soon(limit.serve, Connection(stream, served, "e2b"))


async def _tried(sandboxes: Sandboxes) -> tuple[ServeSettings, str]:
    """Make a sandbox and end it, so that what is wrong shows now; returns settings that work."""
    settings = sandboxes.settings
    if settings.project is None:
        directory = os.path.join(paths.cache_dir(), "e2b", "home")
        os.makedirs(directory, exist_ok=True)
        copied = replace(settings, project=directory)
    else:
        copied = settings
    try:
        sandboxes.settings = copied
        await _try_one(sandboxes)
    except (BadProjectError, BadRequestError, StartFailedError) as error:
        if settings.project is not None:
            raise
        sandboxes.settings = replace(settings, home=WORKSPACE)
        await _try_one(sandboxes)
        return sandboxes.settings, (
            f"the home directory of sandboxes is {WORKSPACE}, and there is no {settings.home}: "
            f"{error.message}"
        )
    return copied, ""


async def _try_one(sandboxes: Sandboxes) -> None:
    sandbox = await sandboxes.create(
        {}, template=sandboxes.settings.environments[0], timeout_s=1, metadata={}, envs={}
    )
    await sandboxes.kill(sandbox.id)


def _listening(port: Port) -> socket.socket:
    family = socket.AF_INET6 if ":" in port.host else socket.AF_INET
    listener = socket.create_server((port.host, port.number), family=family, backlog=BACKLOG)
    listener.setblocking(False)
    return listener


class Application:
    """The application (ASGI). Handlers raise `RefusalError` or `NsmError` before they have sent
    anything; later they write themselves what is wrong.
    """

    def __init__(self, check: KeyCheck, sandboxes: Mapping[str, Sandboxes]) -> None:
        self._check = check
        self._sandboxes = sandboxes

    async def __call__(self, scope: dict[str, Any], receive: Receive, send: Send) -> None:
        message = await receive()
        request = HttpRequest(scope, message.get("body", b""), receive, send)
        sandbox_id = request.headers.get("e2b-sandbox-id", "")
        try:
            await self._answer(request, scope, sandbox_id)
        except NsmError as error:
            await _refuse(request, refusal_of(error, sandbox_id))
        except RefusalError as refusal:
            await _refuse(request, refusal)

    async def _answer(self, request: HttpRequest, scope: dict[str, Any], sandbox_id: str) -> None:
        key = self._check.key_of(scope["headers"])
        if key is None:  # it was changed a moment ago
            raise RefusalError("unauthenticated", "E2B_API_KEY is wrong; `nsm e2b key` prints it")
        sandboxes = self._sandboxes[key.name]
        if not sandbox_id:
            await control.answer(sandboxes, request)
            return
        sandbox = await sandboxes.find(sandbox_id)
        match request.headers.get("e2b-sandbox-port", access.ENVD_PORT):
            case access.ENVD_PORT:
                await _answer_envd(sandbox, request)
            case access.CODE_PORT:
                await contexts.answer(sandbox, request)
            case other:
                raise RefusalError(
                    "unimplemented",
                    f"port {other:.10} of a sandbox is not served here; `nsm port` opens ports of "
                    "sessions",
                )


async def _answer_envd(sandbox: E2bSandbox, request: HttpRequest) -> None:
    """Answer in the place of E2B's own program in a sandbox."""
    path = request.path
    if path == "/health" and request.method == "GET":
        if not await sandbox.sandboxes.is_alive(sandbox):
            raise gone(sandbox.id)
        await request.answer(204)
    elif path == "/files":
        await files.answer(sandbox, request)
    elif path.startswith(_PROCESS) and request.method == "POST":
        await processes.call(sandbox, path.removeprefix(_PROCESS), request)
    elif path.startswith(_FILESYSTEM) and request.method == "POST":
        await files.call(sandbox, path.removeprefix(_FILESYSTEM), request)
    else:
        raise RefusalError("not_found", f"there is no {request.method} {path}")


async def _refuse(request: HttpRequest, refusal: RefusalError) -> None:
    """Send a refusal in the form of the call."""
    if is_stream(request) and refusal.code not in ("gone", "unauthenticated"):
        await ConnectStream(request).end(refusal)
    elif request.path.startswith((_PROCESS, _FILESYSTEM)) and refusal.code != "gone":
        await request.answer(refusal.status, error_of(refusal))
    else:
        told = {"code": refusal.status, "message": refusal.message}
        await request.answer(refusal.status, told)
