"""Lines between one client and the server loops of its two eras.

One server loop of the SDK serves either the handshake revisions (2024-11-05 to 2025-11-25) or the
handshake-free one (2026-07-28), depending on its first request, and then refuses the other. Some
clients send `initialize` after a successful `server/discover`. So each attachment runs one loop per
era. The router decides for each request; messages that refer to a request follow it; one writer
merges the outputs.

Clients choose JSON-RPC ids, and some use one twice. So the shim numbers its lines, and a line that
it repeats after its supervisor ended has the same number:

    17 {"jsonrpc": "2.0", "id": 3, ...}          the first time
    17+2.250 {"jsonrpc": "2.0", "id": 3, ...}    again, 2.25 s after the first time

    17+2.250@5f3a {"jsonrpc": "2.0", ...}        and it was sent to no other supervisor

A line without a number is a notification, an answer, or a request that is never repeated.
"""

from __future__ import annotations

import enum
import logging
import re
import secrets
from collections.abc import Mapping
from contextlib import suppress
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

import anyio
import trio
from anyio.streams.memory import MemoryObjectSendStream
from mcp.server.lowlevel import NotificationOptions
from mcp.server.runner import serve_loop
from mcp.shared import subscriptions
from mcp.shared.dispatcher import coerce_request_id
from mcp.shared.jsonrpc_dispatcher import cancelled_request_id_from_params
from mcp.shared.message import ServerMessageMetadata, SessionMessage
from mcp_types import (
    INVALID_REQUEST,
    PROTOCOL_VERSION_META_KEY,
    JSONRPCError,
    JSONRPCMessage,
    JSONRPCNotification,
    JSONRPCRequest,
    JSONRPCResponse,
    RequestId,
)

from nsm import jsonlines
from nsm.dataclass import dataclass
from nsmd.mcp import messages
from nsmd.model.limits import TURN, ReadRate

if TYPE_CHECKING:
    from nsmd.mcp.endpoint import Endpoint

_NUMBERED = re.compile(rb"(\d{1,15})(?:\+(\d{1,9}\.\d{3})(?:@([0-9a-f]{1,32}))?)? ")


@dataclass(frozen=True, slots=True)
class Number:
    """Number of a line.

    Attributes:
        sent_to: instance of the only supervisor that it was sent to; empty if that is not known.
    """

    execution_id: str
    again_s: float | None = None
    sent_to: str = ""


def split_number(line: bytes, attachment_id: str) -> tuple[Number | None, bytes]:
    """Split a line into its number, if it has one, and the rest."""
    found = _NUMBERED.match(line)
    if found is None:
        return None, line
    number, again, sent_to = found.groups()
    execution_id = f"{attachment_id}-{int(number)}"
    again_s = None if again is None else float(again)
    return Number(execution_id, again_s, (sent_to or b"").decode()), line[found.end() :]


log = logging.getLogger(__name__)

MAX_CALLS = 128
"""Requests of one client under way at once. More are refused at once, because a client that sends
without waiting would use memory without bound.
"""

_QUEUED_LINES = 16
"""Lines that wait for the writer; when it is full, senders wait, too."""

_CHUNK_BYTES = 65536

_MARK = "="
"""Prefix of an id that the SDK would take for a number."""


class Era(enum.Enum):
    """Era of a message."""

    HANDSHAKE = "handshake"
    MODERN = "modern"


@dataclass(slots=True, kw_only=True)
class McpRequest:
    """A request under way; handlers find it as `ctx.request`.

    Attributes:
        cancelled: the client cancelled it (and has not just disconnected).
    """

    era: Era
    cancelled: bool = False
    number: Number | None = None


class Router:
    """Moves messages between a client's stream and two server loops.

    Args:
        attachment_id: id of a shim that numbers its lines; None for other shims.
    """

    def __init__(
        self, stream: trio.abc.Stream, endpoint: Endpoint, attachment_id: str | None = None
    ) -> None:
        self._stream = stream
        self._attachment_id = attachment_id
        self._endpoint = endpoint
        self._server = endpoint.server
        self._inputs: dict[Era, MemoryObjectSendStream[SessionMessage | Exception]] = {}
        self._calls: dict[RequestId, McpRequest] = {}
        self._out, self._queued = trio.open_memory_channel[bytes](_QUEUED_LINES)
        # Ids of our own requests contain it: after a restart of the supervisor, a late answer to
        # the old one's request must not count as an answer to ours.
        self._id_prefix = f"nsm-{secrets.token_hex(4)}-"

    async def run(self, first_bytes: bytes) -> None:
        """Serve until the client is gone."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._write, nursery.cancel_scope)
            nursery.start_soon(self._announce)
            for era in Era:
                nursery.start_soon(self._run_loop, era, self._open_loop(era))
            await self._read(first_bytes)
            # End-of-file: the client is gone. Cancelling the loops cancels the handlers, and
            # those abandon their executions.
            nursery.cancel_scope.cancel()

    async def send(self, item: SessionMessage, /) -> None:
        """Queue a message of a server loop for the client; waits while the client does not read.

        Raises `anyio.BrokenResourceError`.
        """
        message = item.message
        match message:
            case JSONRPCRequest():
                message = message.model_copy(update={"id": f"{self._id_prefix}{message.id}"})
            case JSONRPCNotification(method="notifications/cancelled", params={"requestId": asked}):
                params = {**(message.params or {}), "requestId": f"{self._id_prefix}{asked}"}
                message = message.model_copy(update={"params": params})
            case JSONRPCNotification(
                params={"_meta": {subscriptions.SUBSCRIPTION_ID_META_KEY: stream}}
            ):
                params = message.params or {}
                meta = {
                    **params["_meta"],
                    subscriptions.SUBSCRIPTION_ID_META_KEY: _client_id(stream),
                }
                message = message.model_copy(update={"params": {**params, "_meta": meta}})
            case JSONRPCResponse() | JSONRPCError() if message.id is not None:
                request_id = _client_id(message.id)
                try:
                    await self._queue(message.model_copy(update={"id": request_id}))
                finally:
                    # Only now, since a waiting answer counts as under way.
                    self._calls.pop(request_id, None)
                return
            case _:
                pass
        await self._queue(message)

    # A server loop ends its output stream: not the other's, which writes to the same client.

    async def aclose(self) -> None:
        """Do nothing."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc_val: BaseException | None,
        exc_tb: TracebackType | None,
    ) -> None:
        return None

    async def _queue(self, message: JSONRPCMessage) -> None:
        """Queue a message as it is, for example an answer to what no loop has got: `send` would
        take the id from a request under way that has the same.
        """
        try:
            await self._out.send(messages.encode(message))
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            raise anyio.BrokenResourceError from None

    # Outputs.

    async def _write(self, whole: trio.CancelScope) -> None:
        async with self._queued:
            try:
                async for line in self._queued:
                    await self._stream.send_all(line)
            except (trio.BrokenResourceError, trio.ClosedResourceError):
                whole.cancel()  # nobody reads any more

    async def _announce(self) -> None:
        with suppress(anyio.BrokenResourceError):  # the client is gone; the reader sees that, too
            await self._endpoint.announce(self._queue)

    # Inputs.

    def _open_loop(self, era: Era) -> anyio.abc.ObjectReceiveStream[SessionMessage | Exception]:
        send, receive = anyio.create_memory_object_stream[SessionMessage | Exception](0)
        self._inputs[era] = send
        return receive

    async def _run_loop(self, era: Era, messages: Any) -> None:
        options = self._server.create_initialization_options(
            NotificationOptions(tools_changed=True)
        )
        with self._inputs[era]:
            if era is Era.HANDSHAKE:
                # The same as `Server.run` for this era, without its search for the era.
                await serve_loop(
                    self._server, messages, self, lifespan_state=None, init_options=options
                )
            else:
                await self._server.run(messages, self, options)

    async def _read(self, first_bytes: bytes) -> None:
        buffer = jsonlines.LineBuffer()
        chunk = first_bytes
        read_rate = ReadRate()
        while True:
            lines = 0
            for line in buffer.feed(chunk):
                await self._route_line(line)
                lines += 1
                if lines % TURN == 0:
                    await trio.lowlevel.checkpoint()
            await read_rate.taken(lines)
            try:
                chunk = bytes(await self._stream.receive_some(_CHUNK_BYTES))
            except (trio.BrokenResourceError, trio.ClosedResourceError):
                return
            if not chunk:
                return

    async def _route_line(self, line: bytes | jsonlines.TooLong) -> None:
        if isinstance(line, jsonlines.TooLong):
            await self._queue(messages.too_long(line))
            return
        if not line.strip():
            return
        number: Number | None = None
        if self._attachment_id is not None:
            number, line = split_number(line, self._attachment_id)
        if why := messages.why_too_complex(line):
            await self._queue(messages.misshapen(line, why))
            return
        for message in messages.decode(line):
            match message:
                case messages.ErrorAnswer():
                    await self._queue(messages.error_message(message))
                case JSONRPCRequest():
                    await self._route_request(message, number)
                case JSONRPCNotification(method="notifications/cancelled"):
                    await self._route_cancellation(message)
                case JSONRPCNotification():
                    # Only the handshake revisions have any others.
                    await self._inputs[Era.HANDSHAKE].send(SessionMessage(message))
                case JSONRPCResponse() | JSONRPCError():
                    await self._route_answer(message)

    async def _route_request(self, request: JSONRPCRequest, number: Number | None) -> None:
        if request.id in self._calls:
            why = f"Invalid request: id {str(request.id)[:80]!r} is in use"
            refusal = messages.ErrorAnswer(id=request.id, code=INVALID_REQUEST, message=why)
            await self._queue(messages.error_message(refusal))
            return
        if len(self._calls) >= MAX_CALLS:
            await self._queue(messages.too_many(request, MAX_CALLS))
            return
        call = McpRequest(era=_era_of(request), number=number)
        self._calls[request.id] = call
        metadata = ServerMessageMetadata(
            request_context=call, on_request_unanswered=partial(self._unanswered, request.id)
        )
        request = request.model_copy(update={"id": _sdk_id(request.id)})
        await self._inputs[call.era].send(SessionMessage(request, metadata))

    async def _route_cancellation(self, notification: JSONRPCNotification) -> None:
        cancelled = cancelled_request_id_from_params(notification.params)
        call = self._calls.get(cancelled) if cancelled is not None else None
        if cancelled is None or call is None:  # it is already answered
            return
        call.cancelled = True
        params = {**(notification.params or {}), "requestId": _sdk_id(cancelled)}
        notification = notification.model_copy(update={"params": params})
        await self._inputs[call.era].send(SessionMessage(notification))

    async def _route_answer(self, answer: JSONRPCResponse | JSONRPCError) -> None:
        # Only the handshake era lets a server send requests.
        known = answer.id
        if isinstance(known, str) and known.startswith(self._id_prefix):
            number = known.removeprefix(self._id_prefix)
            own = answer.model_copy(update={"id": int(number) if number.isdecimal() else number})
            await self._inputs[Era.HANDSHAKE].send(SessionMessage(own))

    async def _unanswered(self, request_id: RequestId) -> None:
        self._calls.pop(request_id, None)


def _sdk_id(request_id: RequestId) -> RequestId:
    """Id of a request for the SDK, which takes "7" and 7 for the same."""
    if isinstance(request_id, str) and (
        request_id.startswith(_MARK) or coerce_request_id(request_id) != request_id
    ):
        return _MARK + request_id
    return request_id


def _client_id(sdk_id: RequestId) -> RequestId:
    return sdk_id.removeprefix(_MARK) if isinstance(sdk_id, str) else sdk_id


def _era_of(request: JSONRPCRequest) -> Era:
    # `initialize` does not exist in the modern era, in any envelope.
    meta = (request.params or {}).get("_meta")
    modern = isinstance(meta, Mapping) and PROTOCOL_VERSION_META_KEY in meta
    return Era.MODERN if modern and request.method != "initialize" else Era.HANDSHAKE
