"""The `mcp` package's session manager on the endpoint, with replay of sent messages. HEAVY.

The manager serves both eras: in the handshake revisions a session for each client that initializes,
in the handshake-free one each request by itself. One endpoint answers all of them, since
environments and rights are the same for everybody who has the token.

In the handshake revisions, the code behind a broken stream runs to its end. The client says which
event it had last (`Last-Event-ID`), and gets the later ones, and those to come, up to the answer.
In the handshake-free revision, closing the stream cancels the call.

Each session has its own events, so nobody gets those of another one by guessing numbers. They are
bounded by their memory; the oldest go first, and all of them with the session. The package has one
store for all sessions and does not tell it which one it means. Requests do, so a variable of the
task's context holds the current session; the task that sends a session's messages has that of the
request that opened it.
"""

from __future__ import annotations

import logging
import sys
from collections import deque
from collections.abc import AsyncGenerator, Iterable
from contextlib import asynccontextmanager
from contextvars import ContextVar
from functools import partial
from itertools import count
from typing import Any, cast

import trio
from mcp.server.lowlevel import Server
from mcp.server.streamable_http import EventCallback, EventMessage, EventStore
from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
from mcp_types import (
    INTERNAL_ERROR,
    INVALID_REQUEST,
    ErrorData,
    JSONRPCError,
    JSONRPCMessage,
    JSONRPCResponse,
)
from sse_starlette import EventSourceResponse

from nsm import jsonlines
from nsm.dataclass import dataclass
from nsm.http.connection import Application, Message, Receive, Send
from nsmd.bridge.bridge import BridgeService
from nsmd.manager.run_service import RunService
from nsmd.mcp import messages
from nsmd.mcp.attachment import Attach
from nsmd.mcp.endpoint import Endpoint

MAX_BYTES_OF_SESSION = 4 * 1024 * 1024
"""Largest memory of a session's events."""

MAX_BYTES = 32 * 1024 * 1024
"""Largest memory for all sessions together."""

MAX_STREAMS = 256
"""Largest number of streams of a session whose events are kept: its last requests."""

RETRY_MS = 1000
"""Time after which a client whose stream broke should connect again."""

_SESSION_HEADER = b"mcp-session-id"
_LAST_HEADER = b"last-event-id"

_EVENT_BYTES = 500
"""Memory of an event besides its texts."""


@dataclass(frozen=True, slots=True)
class _Event:
    number: int
    message: JSONRPCMessage | None
    size: int


class _Stream:
    """Messages of one request, or messages without a request."""

    __slots__ = ("answered", "events", "more", "number")

    def __init__(self, number: int) -> None:
        self.number = number
        self.events: deque[_Event] = deque()
        self.answered = False
        self.more = trio.Event()

    def after(self, number: int) -> list[_Event]:
        """Return the kept messages after an event."""
        found: list[_Event] = []
        for event in reversed(self.events):  # mostly few of many are new
            if event.number <= number:
                break
            found.append(event)
        return found[::-1]

    def wake(self) -> None:
        """Wake its readers: there is another event, or never will be."""
        self.more.set()
        self.more = trio.Event()


class SentEvents:
    """The events of one session; without any since `idle_since_s`, on trio's clock."""

    def __init__(self) -> None:
        self.size = 0
        self.requests = 0
        self.idle_since_s = trio.current_time()
        self._over = False
        self._streams: dict[int, _Stream] = {}
        self._current: dict[str, _Stream] = {}

    def __repr__(self) -> str:
        return f"<SentEvents {self.size} bytes of {len(self._streams)} streams>"

    @property
    def oldest(self) -> int:
        """Number of its oldest event."""
        return min((s.events[0].number for s in self._streams.values() if s.events), default=0)

    def add(self, number: int, stream_id: str, message: JSONRPCMessage | None) -> str:
        """Keep an event."""
        stream = self._current.get(stream_id)
        if stream is None or stream.answered:  # ids of requests may be used again
            stream = self._current[stream_id] = _Stream(number)
            if not self._over:
                self._streams[number] = stream
            if len(self._streams) > MAX_STREAMS:
                answered = (of for of, each in self._streams.items() if each.answered)
                self._forget_stream(next(answered, next(iter(self._streams))))
        if stream.number in self._streams:
            message, size = _bounded(message)
            stream.events.append(_Event(number, message, size))
            self.size += size
            while self.size > MAX_BYTES_OF_SESSION:
                self.drop_oldest()
        if isinstance(message, JSONRPCResponse | JSONRPCError):
            stream.answered = True
            del self._current[stream_id]
        stream.wake()
        return f"{stream.number}-{number}"

    def drop_oldest(self) -> None:
        """Forget one event."""
        oldest = self.oldest
        for stream in self._streams.values():
            if stream.events and stream.events[0].number == oldest:
                self.size -= stream.events.popleft().size
                if stream.answered and not stream.events:
                    self._forget_stream(stream.number)
                return

    def follows(self, last_event_id: str) -> bool:
        """Return whether anything follows an event, or still may."""
        stream, last = self._find(last_event_id)
        return stream is not None and (not stream.answered or bool(stream.after(last)))

    async def replay(self, last_event_id: str, send: EventCallback) -> None:
        """Send the events after one on its stream, and later ones, up to the answer."""
        stream, last = self._find(last_event_id)
        while stream is not None:
            more = stream.more
            fresh = stream.after(last)
            for event in fresh:
                last = event.number
                if event.message is not None:
                    await send(EventMessage(event.message, f"{stream.number}-{last}"))
            if not fresh:
                if stream.answered or stream.number not in self._streams:
                    return
                await more.wait()

    def end(self) -> None:
        """Note that the session is over."""
        self._over = True
        for number in list(self._streams):
            self._forget_stream(number)

    def _find(self, event_id: str) -> tuple[_Stream | None, int]:
        """Find the stream of an event, if it is kept, and the event's number."""
        stream, _, number = event_id.partition("-")
        if not (_is_number(stream) and _is_number(number)):
            return None, 0
        return self._streams.get(int(stream)), int(number)

    def _forget_stream(self, number: int) -> None:
        stream = self._streams.pop(number)
        self.size -= sum(event.size for event in stream.events)
        stream.events.clear()
        stream.wake()


class Replays(EventStore):
    """Kept messages of all streams, replayed to clients that reconnect.

    Args:
        most: largest number of sessions. Beyond that, the longest unused one ends: clients that
            disappear must not keep others out.
    """

    def __init__(self, idle_s: float, most: int) -> None:
        self._idle_s = idle_s
        self._most = most
        self._sessions: dict[bytes, SentEvents] = {}
        self._numbers = count(1)
        self._current: ContextVar[SentEvents] = ContextVar("replays")

    def __repr__(self) -> str:
        return f"<Replays of {len(self._sessions)} sessions, {self.size} bytes>"

    @property
    def size(self) -> int:
        """Bytes of memory of everything."""
        return sum(kept.size for kept in self._sessions.values())

    async def serve(
        self, application: Application, scope: dict[str, Any], receive: Receive, send: Send
    ) -> None:
        """Let the package's session manager answer a request."""
        known = _header(scope["headers"])
        self._forget_idle()
        kept = self._sessions.get(known) or SentEvents()
        last = _header(scope["headers"], _LAST_HEADER) if scope["method"] == "GET" else b""
        if last and known in self._sessions and not kept.follows(last.decode("latin-1")):
            # An empty stream would make it come again and again.
            await _gone(send)
            return

        async def sent(message: Message) -> None:
            if message["type"] == "http.response.start":
                status = message["status"]
                opened = _header(message.get("headers", ()))
                if not known and opened and status < 400:
                    self._sessions[opened] = kept
                elif status == 404 or (scope["method"] == "DELETE" and status == 200):
                    self._sessions.pop(known, kept).end()
            await send(message)

        kept.requests += 1
        before = self._current.set(kept)
        try:
            await application(scope, receive, sent)
        finally:
            self._current.reset(before)
            kept.requests -= 1
            kept.idle_since_s = trio.current_time()
        if len(self._sessions) > self._most:
            await self._end_idlest(application, scope)

    async def store_event(self, stream_id: str, message: JSONRPCMessage | None) -> str:
        """Store an event (`EventStore`); does not wait."""
        kept = self._current.get()
        event_id = kept.add(next(self._numbers), stream_id, message)
        while self.size > MAX_BYTES:
            # The newest one belongs to the current session, and is not larger than the bound.
            oldest = min((each for each in self._sessions.values() if each.size), key=_oldest)
            oldest.drop_oldest()
        return event_id

    async def replay_events_after(self, last_event_id: str, send_callback: EventCallback) -> None:
        """Replay the events after one (`EventStore`), and send later ones too, so that none is lost
        in between.
        """
        await self._current.get().replay(last_event_id, send_callback)

    async def _end_idlest(self, application: Application, scope: dict[str, Any]) -> None:
        idle = [(k.idle_since_s, known) for known, k in self._sessions.items() if not k.requests]
        if not idle:
            return
        _, known = min(idle)
        self._sessions.pop(known).end()

        async def receive() -> Message:
            await trio.lowlevel.checkpoint()
            return {"type": "http.request", "body": b""}

        async def send(message: Message) -> None:
            del message
            await trio.lowlevel.checkpoint()

        asked = {**scope, "method": "DELETE", "headers": [(_SESSION_HEADER, known)]}
        with trio.CancelScope(shield=True):  # it waits for nobody
            await application(asked, receive, send)

    def _forget_idle(self) -> None:
        over = trio.current_time() - self._idle_s
        idle = [
            known
            for known, kept in self._sessions.items()
            if not kept.requests and kept.idle_since_s < over
        ]
        for known in idle:
            self._sessions.pop(known).end()


def _oldest(kept: SentEvents) -> int:
    return kept.oldest


async def _gone(send: Send) -> None:
    why = "What followed this event is no longer kept. The session is still there."
    body = jsonlines.dump(
        {"jsonrpc": "2.0", "id": None, "error": {"code": INVALID_REQUEST, "message": why}}
    )
    headers = ((b"content-type", b"application/json"),)
    await send({"type": "http.response.start", "status": 410, "headers": headers})
    await send({"type": "http.response.body", "body": body})


def _header(headers: Iterable[tuple[bytes, bytes]], which: bytes = _SESSION_HEADER) -> bytes:
    return next((value for name, value in headers if name.lower() == which), b"")


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) < 20


def _bounded(message: JSONRPCMessage | None) -> tuple[JSONRPCMessage | None, int]:
    """Return a message in its kept form, and its memory."""
    size = _EVENT_BYTES + _size_of(None if message is None else message.model_dump())
    if size <= MAX_BYTES_OF_SESSION:
        return message, size
    if not isinstance(message, JSONRPCResponse | JSONRPCError):
        return None, _EVENT_BYTES
    # A client that waits for it must not wait for ever.
    why = (
        f"The answer takes {size:,} bytes, and was lost with the connection: no more than "
        f"{MAX_BYTES_OF_SESSION:,} are kept for a client to ask for again. The call was carried "
        "out; have it print less, or write to a file in a session and read parts of it."
    )
    error = ErrorData(code=INTERNAL_ERROR, message=why)
    return JSONRPCError(jsonrpc="2.0", id=message.id, error=error), _EVENT_BYTES + len(why)


def _size_of(value: object) -> int:
    """Approximate memory of plain values, in bytes."""
    size, left = 0, [value]
    while left:
        each = left.pop()
        size += sys.getsizeof(each)
        if isinstance(each, dict):
            members = cast("dict[object, object]", each)
            left.extend(members)
            left.extend(members.values())
        elif isinstance(each, list):
            left.extend(cast("list[object]", each))
    return size


MAX_SESSIONS = 512
"""Largest number of sessions of clients that have initialized. A client that disappears leaves its
session behind.
"""

SESSION_IDLE_S = 30 * 60.0
"""A session ends that long after its last request; the client then gets an error, and initializes
again.
"""

PING_S = 60
"""Time between comments on an open stream, for clients that take a silent one for dead (code may
take longer than the shortest timeout of clients, 300 s). The package's own 15 s would wake an idle
supervisor for each stream.
"""

_CHATTY = ("mcp.server.streamable_http_manager", "mcp.server.streamable_http")
"""Loggers with a line for each session, and for each request too many; the audit and the events
have these, too.
"""

_JSON = ((b"content-type", b"application/json"),)


@asynccontextmanager
async def open_front(
    attach: Attach,
    runner: RunService,
    programs: BridgeService,
    *,
    max_result_chars: int,
    max_body_bytes: int,
) -> AsyncGenerator[Application]:
    """Open the application that answers admitted requests.

    Args:
        attach: entry of all clients, which are confined.
    """
    endpoint = Endpoint(attach, runner, max_result_chars, programs, way="http")
    async with trio.open_nursery() as nursery:
        nursery.start_soon(endpoint.announce)
        async with answering(endpoint.server, max_body_bytes=max_body_bytes) as front:
            yield front
        nursery.cancel_scope.cancel()


@asynccontextmanager
async def answering(server: Server[Any], *, max_body_bytes: int) -> AsyncGenerator[Application]:
    """Serve a server of the `mcp` package by nsm's HTTP."""
    for name in _CHATTY:
        logging.getLogger(name).setLevel(logging.ERROR)
    # There is no other way to it; type checkers assume all types that it may have.
    EventSourceResponse.DEFAULT_PING_INTERVAL = PING_S  # pyright: ignore[reportAttributeAccessIssue]
    replays = Replays(SESSION_IDLE_S, MAX_SESSIONS)
    manager = StreamableHTTPSessionManager(
        server,
        event_store=replays,
        retry_interval=RETRY_MS,
        session_idle_timeout=SESSION_IDLE_S,
        max_request_body_size=max_body_bytes,
        max_sessions=2 * MAX_SESSIONS,  # beyond ours, idle ones end
    )
    async with manager.run():
        yield partial(_well_shaped, partial(replays.serve, manager.handle_request))


async def _well_shaped(
    application: Application, scope: dict[str, Any], receive: Receive, send: Send
) -> None:
    """Refuse a body with too much structure before it is parsed: the manager would parse it, and
    block everybody.
    """
    whole = await receive()  # all of the body, or that the client is gone
    body = whole.get("body", b"")
    if why := messages.why_too_complex(body):
        text = messages.encode(messages.misshapen_error(body, why))
        await send({"type": "http.response.start", "status": 400, "headers": _JSON})
        await send({"type": "http.response.body", "body": text})
        return

    unread = [whole]

    async def received() -> Message:
        return unread.pop() if unread else await receive()

    await application(scope, received, send)
