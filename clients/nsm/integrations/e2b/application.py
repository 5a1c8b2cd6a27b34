"""The application behind the HTTP server: finds the key and the sandbox, and the handler."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from nsm.integrations.e2b import access, connect
from nsm.integrations.e2b.access import RPC
from nsm.integrations.e2b.contexts import Contexts
from nsm.integrations.e2b.control import Control
from nsm.integrations.e2b.errors import RefusalError, gone, refusal_of
from nsm.integrations.e2b.files import FileContents
from nsm.integrations.e2b.filesystem import Filesystem
from nsm.integrations.e2b.processes import Processes
from nsm.integrations.e2b.requests import HttpRequest
from nsm.wire.errors import NsmError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from nsm.http.exchange import Receive, Send
    from nsm.integrations.e2b.access import Key, KeyCheck
    from nsm.integrations.e2b.sandboxes import E2bSandbox, Sandboxes

log = logging.getLogger(__name__)

_PROCESS, _FILESYSTEM = (path.decode() for path in RPC)


class KeyHandlers:
    """Handlers of the clients of one key."""

    def __init__(self, sandboxes: Sandboxes, key: Key, max_upload_bytes: int) -> None:
        self.sandboxes = sandboxes
        self.control = Control(sandboxes, key)
        self.processes = Processes(sandboxes)
        self.filesystem = Filesystem(sandboxes)
        self.files = FileContents(sandboxes, max_upload_bytes)
        self.contexts = Contexts(sandboxes)


class Application:
    """The application (ASGI).

    Args:
        check: finds the key of a request that was admitted.
        handlers: by the name of the key.
    """

    def __init__(self, check: KeyCheck, handlers: Mapping[str, KeyHandlers]) -> None:
        self._check = check
        self._handlers = handlers

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
        handlers = self._handlers[key.name]
        if not sandbox_id:
            await handlers.control.answer(request)
            return
        sandbox = await handlers.sandboxes.find(sandbox_id)
        match request.headers.get("e2b-sandbox-port", access.ENVD_PORT):
            case access.ENVD_PORT:
                await self._envd(handlers, sandbox, request)
            case access.CODE_PORT:
                await handlers.contexts.answer(sandbox, request)
            case other:
                raise RefusalError(
                    "unimplemented",
                    f"port {other:.10} of a sandbox is not served here; `nsm port` opens ports of "
                    "sessions",
                )

    async def _envd(self, handlers: KeyHandlers, sandbox: E2bSandbox, request: HttpRequest) -> None:
        path = request.path
        if path == "/health" and request.method == "GET":
            if not await handlers.sandboxes.is_alive(sandbox):
                raise gone(sandbox.id)
            await request.answer(204)
        elif path == "/files":
            await handlers.files.answer(sandbox, request)
        elif path.startswith(_PROCESS) and request.method == "POST":
            await handlers.processes.call(sandbox, path.removeprefix(_PROCESS), request)
        elif path.startswith(_FILESYSTEM) and request.method == "POST":
            await handlers.filesystem.call(sandbox, path.removeprefix(_FILESYSTEM), request)
        else:
            raise RefusalError("not_found", f"there is no {request.method} {path}")


async def _refuse(request: HttpRequest, refusal: RefusalError) -> None:
    """Send a refusal in the form of the call."""
    if connect.is_stream(request) and refusal.code not in ("gone", "unauthenticated"):
        await connect.ConnectStream(request).end(refusal)
    elif request.path.startswith((_PROCESS, _FILESYSTEM)) and refusal.code != "gone":
        await request.answer(refusal.status, connect.error_of(refusal))
    else:
        told = {"code": refusal.status, "message": refusal.message}
        await request.answer(refusal.status, told)
