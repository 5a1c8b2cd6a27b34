"""The control socket's connections: bytes in, operations carried out, answers back.

Each connection is one task with a nursery for its requests. A request that raises ends with an
`internal` answer, a connection that raises ends alone; both are logged. What a client does not read
waits in its own connection and slows nobody else.
"""

from __future__ import annotations

import logging
import os
import socket
import struct
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import trio

from nsm._version import __version__
from nsm.wire.connection import ServerConnection, sniff
from nsm.wire.errors import (
    ForbiddenError,
    InternalError,
    NsmError,
    OverloadedError,
    UnknownOperationError,
)
from nsm.wire.frames import LocalProtocolError, RemoteProtocolError
from nsm.wire.messages import (
    CONNECTION_ID,
    Cancel,
    Event,
    Failure,
    Hello,
    Invalid,
    Request,
    Result,
    ServerMessage,
)
from nsmd.control.call import ALL_RIGHTS, Call, Right, Services
from nsmd.control.operations import OPERATIONS
from nsmd.descriptors import MAX_CONNECTIONS
from nsmd.files import OpenFiles

log = logging.getLogger(__name__)

CHUNK_BYTES = 64 * 1024
HELLO_TIMEOUT_S = 30.0
"""A connection that says nothing for that long is closed; it holds a descriptor."""

FAREWELL_TIMEOUT_S = 2.0
"""Bound on telling a peer why its connection ends."""

_UCRED = struct.Struct("3i")

ServeAttachment = Callable[[trio.SocketStream, bytes], Awaitable[None]]
"""Takes over a connection that begins as an MCP attachment, with the bytes read so far."""


@dataclass(frozen=True, slots=True)
class Access:
    """Who may connect to a listener, and what they may ask for."""

    uid: int
    rights: frozenset[Right] = ALL_RIGHTS


class ControlServer:
    """Serves one listening socket.

    Args:
        access: whom it lets in, with which rights.
        services: what operations work on.
        serve_attachment: the MCP endpoint.
        max_connections: at once; more are told so and closed.
    """

    def __init__(
        self,
        access: Access,
        services: Services,
        serve_attachment: ServeAttachment,
        max_connections: int = MAX_CONNECTIONS,
    ) -> None:
        self._access = access
        self._services = services
        self._serve_attachment = serve_attachment
        self._max_connections = max_connections
        self._connections = 0

    @property
    def connections(self) -> int:
        """How many clients are connected."""
        return self._connections

    async def handle(self, stream: trio.SocketStream) -> None:
        """One connection from accept to close; never raises but for cancellation."""
        self._connections += 1
        try:
            async with stream:
                await self._admit(stream)
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            log.debug("a client went away")
        except Exception:  # one connection's fault is not the others'
            log.exception("a connection failed")
        finally:
            self._connections -= 1

    async def _admit(self, stream: trio.SocketStream) -> None:
        peer = _peer_uid(stream)
        if peer not in (self._access.uid, 0):
            log.warning("refused a connection of uid %d", peer)
            await _farewell(stream, ForbiddenError("This supervisor belongs to another user."))
            return
        if self._connections > self._max_connections:
            await _farewell(
                stream,
                OverloadedError(
                    f"The supervisor has {self._max_connections} connections already.",
                    hint="Close some clients and try again.",
                ),
            )
            return
        first = b""
        with trio.move_on_after(HELLO_TIMEOUT_S):
            first = await stream.receive_some(CHUNK_BYTES)
        if not first:
            return
        if sniff(first) == "attachment":
            await self._serve_attachment(stream, first)
        else:
            await _Connection(stream, self._access, self._services).serve(first)


class _Connection:
    """One client that speaks the control protocol."""

    def __init__(self, stream: trio.SocketStream, access: Access, services: Services) -> None:
        self._stream = stream
        self._access = access
        self._services = services
        self._protocol = ServerConnection()
        self._sending = trio.Lock()
        # By request that is being carried out: what cancels it.
        self._cancels: dict[int, _Cancellation] = {}
        self._hello: Hello | None = None
        self._files = OpenFiles(services.max_file_bytes)

    async def serve(self, first: bytes) -> None:
        try:
            async with trio.open_nursery() as nursery:
                data = first
                while True:
                    self._protocol.receive_data(data)
                    while (message := self._protocol.next_message()) is not None:
                        await self._take(message, nursery)
                    if not data:
                        break
                    if self._hello is None:
                        with trio.fail_after(HELLO_TIMEOUT_S):
                            data = await self._stream.receive_some(CHUNK_BYTES)
                    else:
                        data = await self._stream.receive_some(CHUNK_BYTES)
                # The client is gone: nobody is left to answer.
                nursery.cancel_scope.cancel()
        except* RemoteProtocolError as group:
            error = group.exceptions[0]
            log.warning("closing a connection: %s", error)
            if isinstance(error, RemoteProtocolError):
                await _farewell(self._stream, error)
        except* trio.TooSlowError:
            log.debug("closing a connection that did not finish its hello")
        except* (trio.BrokenResourceError, trio.ClosedResourceError):
            log.debug("a client went away")
        finally:
            self._files.abandon_all()

    async def _take(
        self, message: Hello | Request | Cancel | Invalid, nursery: trio.Nursery
    ) -> None:
        match message:
            case Hello():
                self._hello = message
                await self._send(
                    Hello(
                        name="nsm-supervisor",
                        program_version=__version__,
                        pid=os.getpid(),
                        rights=tuple(sorted(self._access.rights)),
                    )
                )
            case Request():
                # Before the request's task begins: a cancel may be right behind.
                self._cancels[message.id] = _Cancellation()
                nursery.start_soon(self._answer, message)
            case Cancel(id=request_id):
                if (cancellation := self._cancels.get(request_id)) is not None:
                    cancellation.cancel()
            case Invalid(id=request_id, error=error):
                await self._send(Failure(request_id, error))

    async def _answer(self, request: Request) -> None:
        afterwards: list[Callable[[], None]] = []
        try:
            result = await self._carry_out(request, afterwards.append)
            answer: ServerMessage = Result(request.id, result)
        except NsmError as error:
            answer = Failure(request.id, error)
        except Exception:
            log.exception("operation %.50r failed", request.op)
            answer = Failure(
                request.id,
                InternalError(
                    f"Operation {request.op!r} failed inside the supervisor.",
                    hint="Its log has the details (see `nsm status`); please report it.",
                ),
            )
        finally:
            self._cancels.pop(request.id, None)
        try:
            await self._send(answer)
        except LocalProtocolError as error:
            await self._send(
                Failure(request.id, InternalError(f"The answer cannot be sent: {error}"))
            )
        finally:
            for function in afterwards:
                function()

    async def _carry_out(
        self, request: Request, afterwards: Callable[[Callable[[], None]], None]
    ) -> dict[str, Any]:
        row = OPERATIONS.get(request.op)
        if row is None:
            raise UnknownOperationError(
                f"Unknown operation {request.op[:50]!r}.",
                hint=f"This supervisor ({__version__}) knows: {', '.join(OPERATIONS)}.",
            )
        if row.right not in self._access.rights:
            raise ForbiddenError(
                f"Operation {request.op!r} needs the right {row.right!r}.",
                hint="This connection was not given it.",
            )

        async def emit(event: str, data: dict[str, Any]) -> None:
            await self._send(Event(request.id, event, data))

        assert self._hello is not None, "the protocol lets no request pass before hello"
        return await row.function(
            Call(
                services=self._services,
                args=request.args,
                client=self._hello.name or "unknown",
                scope=self._hello.scope or "cli",
                files=self._files,
                emit=emit,
                on_cancel=self._cancels[request.id].on_cancel,
                afterwards=afterwards,
            )
        )

    async def _send(self, message: ServerMessage) -> None:
        data = self._protocol.send(message)
        if not self._sending.locked():
            # Nobody is in the middle of a frame: what the socket takes at once, as nearly every
            # answer, needs no turn of the scheduler.
            data = data[self._send_now(data) :]
            if not data:
                return
        async with self._sending:
            # A send that is cancelled leaves half a frame: it only is when the connection ends.
            await self._stream.send_all(data)

    def _send_now(self, data: bytes) -> int:
        try:
            return os.write(self._stream.socket.fileno(), data)
        except BlockingIOError:
            return 0
        except OSError as error:
            raise trio.BrokenResourceError from error


class _Cancellation:
    """A request's wish to be cancelled, and what to do about it: in either order."""

    def __init__(self) -> None:
        self._wanted = False
        self._function: Callable[[], None] | None = None

    def cancel(self) -> None:
        """The client no longer wants the request to go on."""
        self._wanted = True
        if self._function is not None:
            self._function()

    def on_cancel(self, function: Callable[[], None]) -> None:
        """From now on there is something to do."""
        self._function = function
        if self._wanted:
            function()


def _peer_uid(stream: trio.SocketStream) -> int:
    data = stream.socket.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _UCRED.size)
    _pid, uid, _gid = _UCRED.unpack(data)
    return int(uid)


async def _farewell(stream: trio.SocketStream, error: NsmError) -> None:
    """Say why the connection ends, if the peer still listens."""
    with trio.move_on_after(FAREWELL_TIMEOUT_S):
        await stream.send_all(ServerConnection().send(Failure(CONNECTION_ID, error)))
