"""Clients behind the SDK: who calls, their directories, the tools that they have been told of, and
what they are told while a call runs.

Behind a shim, a request's own context is the router's `McpRequest`. Other transports have another
context: their requests have no numbers, and if a handler is cancelled, the client cancelled the
request, unless the transport knows better.

A client that has never listed the tools learns of everything when it does. Any other client gets
one notice for all changes until the notice is sent: in the handshake revisions as a notification,
in the handshake-free one on the streams that it opened (`subscriptions/listen`).

Code's output is reported at most ten times a second, so that a flood costs the client little, and
at least every 15 s, because clients give up silent calls. Output of programs of the bridge is
reported line by line: at most `BURST` in `MIN_INTERVAL_S`, and of faster output the newest lines,
with the number of those left out.
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections import OrderedDict, deque
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import ExitStack
from functools import partial
from typing import Any, Protocol, TypeVar
from urllib.parse import unquote, urlsplit

import trio
from mcp.server.context import ServerRequestContext
from mcp.server.session import ServerSession
from mcp.server.subscriptions import InMemorySubscriptionBus, ListenHandler, ToolsListChanged
from mcp.shared.exceptions import MCPError
from mcp.shared.jsonrpc_dispatcher import progress_token_from_params
from mcp_types import JSONRPCMessage, JSONRPCNotification, ListRootsRequest, ListRootsResult
from mcp_types.version import MODERN_PROTOCOL_VERSIONS
from pydantic import ValidationError

from nsm.wire.errors import NsmError
from nsmd.environments.on_demand import patiently
from nsmd.mcp.attachment import TAKEN_BACK
from nsmd.mcp.router import McpRequest, Number
from nsmd.mcp.text import clean, settled
from nsmd.model.values import ClientIdentity, Environment, Output, StreamName
from nsmd.sessions.execution import Execution

log = logging.getLogger(__name__)


Context = ServerRequestContext[Any, Any]

_MAX_CLIENT_CHARS = 64


def call_of(ctx: Context) -> McpRequest | None:
    """The router's own context of a request."""
    return ctx.request if isinstance(ctx.request, McpRequest) else None


def number_of(ctx: Context) -> Number | None:
    """Number with which a shim would repeat the request."""
    return ctx.request.number if isinstance(ctx.request, McpRequest) else None


def began_before_s(ctx: Context) -> float:
    """Seconds since it was sent first, if it was sent before; else 0."""
    number = number_of(ctx)
    return (number.again_s if number is not None else None) or 0.0


def taken_back(ctx: Context) -> bool:
    """True: the client cancelled the request and is still there. False: its connection is gone."""
    call = call_of(ctx)
    if call is not None:
        return call.cancelled
    scope: dict[str, Any] = getattr(ctx.request, "scope", {})
    return bool(scope.get(TAKEN_BACK, _always)())


def _always() -> bool:
    return True


def wants_progress(ctx: Context) -> bool:
    """Return whether the client asked for progress."""
    return progress_token_from_params(ctx.params) is not None


async def report(ctx: Context, seconds: float, text: str) -> None:
    """Report progress of a request to the client (an `nsmd.mcp.clients.Report`)."""
    await ctx.session.report_progress(seconds, None, text)


def client_name(given: str) -> str:
    """The name that a client gives itself, as it appears in terminals, logs and scopes."""
    name = "".join(c if c.isalnum() or c in "._-" else "-" for c in given[:_MAX_CLIENT_CHARS])
    return name.strip("-") or "unknown"


ROOTS_TIMEOUT_S = 2.0
"""Time for a client's answer to `roots/list`; after that it counts as having none. A call waits for
it.
"""


class ClientRoots:
    """The client's first root: requested once, and again after a change."""

    def __init__(self) -> None:
        self._lock = trio.Lock()  # calls come in parallel, but the client is asked once
        self._known = False
        self._first: str | None = None
        self._changes = 0

    @property
    def last(self) -> str | None:
        """The first root in the client's last answer; it is not asked."""
        return self._first

    def to_be_asked(self, ctx: Context) -> bool:
        """Return whether the client has roots but has not sent them yet."""
        return not self._known and _can_be_asked(ctx)

    def forget(self) -> None:
        """Note that they have changed."""
        self._known = False
        self._changes += 1

    async def first(self, ctx: Context) -> str | None:
        """Path of the first root; None if the client has none, or does not answer."""
        if not _can_be_asked(ctx):
            return None
        async with self._lock:
            if not self._known:
                changes = self._changes
                self._first = await _ask_first_root(ctx)
                self._known = changes == self._changes  # otherwise they changed while it answered
            return self._first


def _can_be_asked(ctx: Context) -> bool:
    capabilities = ctx.session.client_capabilities
    has_roots = capabilities is not None and capabilities.roots is not None
    return has_roots and ctx.session.can_send_request


async def _ask_first_root(ctx: Context) -> str | None:
    try:
        answer = await ctx.session.send_request(
            ListRootsRequest(), ListRootsResult, request_read_timeout_seconds=ROOTS_TIMEOUT_S
        )
    except (MCPError, ValidationError) as error:
        log.info("no roots from the client: %s", error)
        return None
    for root in answer.roots:
        parts = urlsplit(str(root.uri))
        if parts.scheme == "file" and parts.netloc in ("", "localhost"):
            return unquote(parts.path, errors="surrogateescape")
    return None


MAX_STREAMS = 16
"""Largest number of streams of one client; one is enough."""

MAX_SESSIONS = 64
"""Largest number of clients behind one endpoint to keep, those that listed last."""

_SESSION_HEADER = "mcp-session-id"

_CHANGED = JSONRPCNotification(jsonrpc="2.0", method="notifications/tools/list_changed")

TELLING_TIMEOUT_S = 2.0
"""Time to notify one of them: it may not read, and the others wait meanwhile."""

View = tuple[tuple[Environment, ...], bool]
"""Environments to run code in, and whether there are programs of the host to start."""

Subscribe = Callable[[Callable[[], None]], Callable[[], None]]
"""Like `nsmd.environments.catalog.Catalog.subscribe`."""

Send = Callable[[JSONRPCMessage], Awaitable[None]]


class ListedTools:
    """List of tools that each client got."""

    def __init__(self, view: Callable[[ClientIdentity], View]) -> None:
        self._view = view
        self._bus = InMemorySubscriptionBus()
        self.listen = ListenHandler(
            self._bus, max_subscriptions=MAX_STREAMS, max_buffered_events=MAX_STREAMS
        )
        self._client: ClientIdentity | None = None
        self._told: View = (), False
        self._shook_hands = False
        self._sessions: OrderedDict[str, ServerSession] = OrderedDict()
        self._changed = trio.Event()

    def remember(self, ctx: Context, client: ClientIdentity, view: View) -> None:
        """Remember what the client got."""
        if call_of(ctx) is not None or self._client is None:
            self._client, self._told = client, view
        # Otherwise there are other clients, who did not get the same.
        if ctx.protocol_version in MODERN_PROTOCOL_VERSIONS:
            return
        self._shook_hands = True
        if call_of(ctx) is None:
            self._note_session(ctx)

    async def announce(self, subscribe: Sequence[Subscribe], send: Send | None) -> None:
        """Notify the client whenever its list would be another one now; until cancelled.

        Args:
            send: sends a message; waits while the client does not read. None if the endpoint has
                several clients, which get notices by their sessions.
        """
        self._changed = trio.Event()
        with ExitStack() as stack:
            for each in subscribe:
                stack.callback(each(self._note_change))
            while True:
                await self._changed.wait()
                self._changed = trio.Event()
                if self._client is None:
                    continue
                view = self._view(self._client)
                if view == self._told:
                    continue
                self._told = view
                await self._bus.publish(ToolsListChanged())
                if send is None:
                    await self._tell_sessions()
                elif self._shook_hands:
                    await send(_CHANGED)

    def _note_change(self) -> None:
        self._changed.set()

    def _note_session(self, ctx: Context) -> None:
        headers = getattr(ctx.request, "headers", None)
        known = headers.get(_SESSION_HEADER) if headers is not None else None
        if known is not None:
            self._sessions[known] = ctx.session
            self._sessions.move_to_end(known)
            if len(self._sessions) > MAX_SESSIONS:
                self._sessions.popitem(last=False)

    async def _tell_sessions(self) -> None:
        for known, session in list(self._sessions.items()):
            with trio.move_on_after(TELLING_TIMEOUT_S) as told:
                await session.send_tool_list_changed()
            if told.cancelled_caught:
                self._sessions.pop(known, None)


MIN_INTERVAL_S = 0.1
MAX_SILENCE_S = 15.0
MAX_MESSAGE_CHARS = 8192
"""Largest output in one notification. Faster output is skipped: the result has all of it."""

BURST = 10
"""Lines of a program in `MIN_INTERVAL_S`."""

MAX_WAITING = 512
"""Largest number of waiting lines; beyond that, the oldest is left out. The result has them."""

STDERR_MARK = "[stderr] "
"""Prefix of a line of stderr. A line of stdout is unchanged."""

_MIN_STEP_S = 0.001
"""Smallest difference between the times of two notifications: the specification demands that
`progress` grows, and its value is rounded to this.
"""

Report = Callable[[float, str], Awaitable[None]]
"""Sends one notification: seconds since the start, and the text."""


class _Feed(ABC):
    """Feed that accepts output at any speed and reports it at a bounded one."""

    def __init__(self, began_before_s: float = 0.0) -> None:
        self._before_s = began_before_s
        self._started_s: float | None = None
        self._reported_s = -_MIN_STEP_S
        self._skipped = 0
        self._arrived = trio.Event()
        self._ended = trio.Event()

    def end(self) -> None:
        """Have `run` report at once what waits, and return."""
        self._ended.set()
        self._arrived.set()

    async def run(self, report: Report) -> None:
        """Report until the end, or until cancelled; it may be run again."""
        last = trio.current_time()
        started = self._started_s = self._started_s or last - self._before_s
        while self._waits or not self._ended.is_set():
            with trio.move_on_at(last + MAX_SILENCE_S):
                await self._arrived.wait()
            last = trio.current_time()
            silence = [f"running for {last - started:.0f} s"]
            for text in self._next_messages() if self._arrived.is_set() else silence:
                elapsed = round(trio.current_time() - started, 3)
                self._reported_s = max(elapsed, round(self._reported_s + _MIN_STEP_S, 3))
                await report(self._reported_s, settled(clean(text)))
            with trio.move_on_at(last + MIN_INTERVAL_S):
                await self._ended.wait()

    @property
    @abstractmethod
    def _waits(self) -> bool:
        """True if there is something to report."""

    @abstractmethod
    def _next_messages(self) -> Iterator[str]:
        """Messages to report now, of what has arrived."""


class ProgressFeed(_Feed):
    """Feed of code's output. The newest `MAX_MESSAGE_CHARS` wait to be reported; older ones are
    dropped and counted.
    """

    def __init__(self, began_before_s: float = 0.0) -> None:
        super().__init__(began_before_s)
        self._pieces: list[str] = []
        self._chars = 0

    def add(self, output: Output) -> None:
        """Accept a piece of output; never blocks (an `nsmd.model.values.OutputSink`)."""
        if not output.text:
            return
        self._pieces.append(output.text)
        self._chars += len(output.text)
        # twice the size, so that each character is copied once
        if self._chars > 2 * MAX_MESSAGE_CHARS:
            self._trim()
        self._arrived.set()

    @property
    def _waits(self) -> bool:
        return bool(self._pieces)

    def _next_messages(self) -> Iterator[str]:
        self._trim()
        text = "".join(self._pieces)
        if self._skipped:
            text = f"[... {self._skipped:,} characters skipped ...]\n{text}"
        self._pieces, self._chars, self._skipped = [], 0, 0
        self._arrived = trio.Event()
        yield text

    def _trim(self) -> None:
        text = "".join(self._pieces)
        excess = max(0, len(text) - MAX_MESSAGE_CHARS)
        self._pieces = [text[excess:]]
        self._chars = len(self._pieces[0])
        self._skipped += excess


class LineFeed(_Feed):
    """Feed of a program's lines, each of which is one notification."""

    def __init__(self, began_before_s: float = 0.0) -> None:
        super().__init__(began_before_s)
        self._lines: deque[str] = deque()

    def add(self, stream: StreamName, line: str) -> None:
        """Accept a line; never blocks (an `nsmd.bridge.programs.OnLine`)."""
        if len(self._lines) >= MAX_WAITING:
            self._lines.popleft()
            self._skipped += 1
        self._lines.append(f"{STDERR_MARK}{line}" if stream == "stderr" else line)
        self._arrived.set()

    @property
    def _waits(self) -> bool:
        return bool(self._lines)

    def _next_messages(self) -> Iterator[str]:
        for _ in range(BURST):
            if self._skipped:
                skipped, self._skipped = self._skipped, 0
                yield f"[... {skipped:,} lines left out ...]"
            if not self._lines:
                break
            yield self._lines.popleft()
        if not self._lines and not self._ended.is_set():
            self._arrived = trio.Event()


T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)


class Handle(Protocol[T_co]):
    """Handle of code or of a program that runs for a client."""

    async def wait(self) -> T_co:
        """Wait for the outcome.

        Cancellation: only the waiter ends; what runs continues.

        Raises:
            NsmError: there is none: it was refused, or could not be started, or its session ended.
        """
        ...

    def interrupt(self) -> None:
        """Ask it to stop: the client cancelled. `wait` then gives an outcome that says so."""

    def abandon(self) -> None:
        """Let the handle go: the client is gone. A one-shot ends, a named session's execution
        continues to its limit, and a program ends unless the client soon asks for it again.
        """


async def submit_patiently(
    submit: Callable[[], Execution], ctx: Context, feed: ProgressFeed | None
) -> Execution:
    """Submit a call when its environment is ready."""
    waiting = patiently(submit)
    return await (waiting if feed is None else _with_reports(waiting, ctx, feed))


async def outcome_of(call: Handle[T], ctx: Context, feed: ProgressFeed | LineFeed | None) -> T:
    """Wait for the outcome of a call, and report its output meanwhile.

    Cancellation: if the client cancelled the call, it is interrupted; otherwise the client is gone,
    and the call is abandoned.
    """
    try:
        return await (call.wait() if feed is None else _with_reports(call.wait(), ctx, feed))
    except NsmError:
        raise
    except BaseException:
        if taken_back(ctx):
            call.interrupt()
        else:
            call.abandon()
        raise


async def _with_reports(waiting: Awaitable[T], ctx: Context, feed: ProgressFeed | LineFeed) -> T:
    found: T | NsmError
    async with trio.open_nursery() as nursery:
        nursery.start_soon(feed.run, partial(report, ctx))
        try:
            found = await waiting
        except NsmError as error:
            found = error  # raised in a nursery, it would be in a group
        if isinstance(feed, LineFeed):
            feed.end()  # lines that wait are reported first
        else:
            nursery.cancel_scope.cancel()
    if isinstance(found, NsmError):
        raise found
    return found
