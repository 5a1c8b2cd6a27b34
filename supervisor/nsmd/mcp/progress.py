"""Outcomes of calls, awaited while the client gets their output as progress.

Code's output is reported at most ten times a second, so that a flood costs the client little, and
at least every 15 s, because clients give up silent calls. Output of programs of the bridge is
reported line by line: at most `BURST` in `MIN_INTERVAL_S`, and of faster output the newest lines,
with the number of those left out.
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Awaitable, Callable, Iterator
from functools import partial
from typing import Protocol, TypeVar

import trio

from nsm.wire.errors import NsmError
from nsmd.environments.on_demand import patiently
from nsmd.mcp.clients import Context, report, taken_back
from nsmd.mcp.text import clean, settled
from nsmd.model.values import Output, StreamName
from nsmd.sessions.execution import Execution

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


log = logging.getLogger(__name__)

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
    if feed is None:
        return await patiently(submit)
    execution: Execution | NsmError
    async with trio.open_nursery() as nursery:
        nursery.start_soon(feed.run, partial(report, ctx))
        try:
            execution = await patiently(submit)
        except NsmError as error:
            execution = error  # raised in a nursery, it would be in a group
        nursery.cancel_scope.cancel()
    if isinstance(execution, NsmError):
        raise execution
    return execution


async def outcome_of(call: Handle[T], ctx: Context, feed: ProgressFeed | LineFeed | None) -> T:
    """Wait for the outcome of a call, and report its output meanwhile.

    Cancellation: if the client cancelled the call, it is interrupted; otherwise the client is gone,
    and the call is abandoned.
    """
    try:
        return await (call.wait() if feed is None else _reported(call, ctx, feed))
    except NsmError:
        raise
    except BaseException:
        if taken_back(ctx):
            call.interrupt()
        else:
            call.abandon()
        raise


async def _reported(call: Handle[T], ctx: Context, feed: ProgressFeed | LineFeed) -> T:
    outcome: T | NsmError
    async with trio.open_nursery() as nursery:
        nursery.start_soon(feed.run, partial(report, ctx))
        try:
            outcome = await call.wait()
        except NsmError as error:
            outcome = error  # raised in a nursery, it would be in a group
        if isinstance(feed, LineFeed):
            feed.end()  # lines that wait are reported first
        else:
            nursery.cancel_scope.cancel()
    if isinstance(outcome, NsmError):
        raise outcome
    return outcome
