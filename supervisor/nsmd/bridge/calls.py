"""Calls of programs: a handle of each, from its request until its answer is forgotten, and the
answers of finished ones, for clients that lost the connection.
"""

from __future__ import annotations

import sys
from collections import OrderedDict
from collections.abc import Sequence
from copy import copy
from typing import cast

import trio

from nsm.dataclass import replace
from nsm.wire.errors import AuditFailedError, FateUnknownError, InternalError, NsmError
from nsmd.bridge.ledger import Ledger
from nsmd.bridge.programs import MAX_ARGUMENTS, OnLine, ProgramEnd, RecordedCall
from nsmd.bridge.running import Stop
from nsmd.model.values import StreamName

GRACE_S = 10.0
"""Time for a client that lost its connection to come back and ask for the same call."""


MAX_TOLD = 10
"""Largest number of programs named in one line of the log."""

MAX_KEPT = 64
"""Largest number of answers that clients may ask for again."""

MAX_KEPT_BYTES = 64 * 1024 * 1024
"""Largest size of their output. The last one is kept at any size: `[mcp] max_result_chars` allows
80 MB in a single one, and a client asks again at once.
"""

Key = tuple[str, str]
"""Scope of a client, and id of the call."""

_FATES = {
    "ended": "The answer to this call is lost: the program was started, and has ended.",
    "under-way": "The supervisor ended while this call was under way: the program was started, and "
    "how far it came is unknown.",
}


class ProgramCall:
    """A call, from its request until its answer is forgotten: `admitted` to those that may run now;
    `late`, when the supervisor was already ending, so that it starts nothing; `refused`, with only
    its line in the ledger missing.
    """

    def __init__(self, asked: RecordedCall, on_line: OnLine | None, nursery: trio.Nursery) -> None:
        self.asked = asked
        self.stop = Stop()
        self.admitted = False
        self.late = False
        self.refused = False
        self.started = False
        self.answer: ProgramEnd | NsmError | None = None
        self._listeners = [] if on_line is None else [on_line]
        self._nursery = nursery
        self._done = trio.Event()
        self._claims = 1
        self._wanted = trio.Event()

    def __repr__(self) -> str:
        return f"<ProgramCall {self.asked.id} of {self.asked.program!r:.80}>"

    @property
    def id(self) -> str:
        """Id in the ledger, and for repetitions."""
        return self.asked.id

    async def wait(self) -> ProgramEnd:
        """Wait for the outcome, or the error with which it was refused. Cancellation ends only the
        waiter; the program continues.
        """
        await self._done.wait()
        if isinstance(self.answer, NsmError):
            raise copy(self.answer)  # a raised error keeps its traceback alive
        assert self.answer is not None
        return self.answer

    def interrupt(self) -> None:
        """Stop the program: the client cancels the call, or nsm does."""
        self.stop.ask("cancelled")

    def abandon(self) -> None:
        """The caller is gone: stop the program, unless the caller comes back soon."""
        self._claims -= 1
        if self._claims == 0 and not self._done.is_set():
            self._wanted = trio.Event()
            self._nursery.start_soon(self._give_up)

    def claim(self, on_line: OnLine | None) -> None:
        """A client repeats the call; it gets earlier output only with the answer."""
        self._claims += 1
        self._wanted.set()
        if on_line is not None:
            self._listeners = [on_line]

    def take_line(self, stream: StreamName, line: str) -> None:
        """Pass on a line of output."""
        for listener in self._listeners:
            listener(stream, line)

    def settle(self, answer: ProgramEnd | NsmError) -> None:
        """Set the answer, once."""
        # The answer may be kept for long, and a traceback keeps everything alive that was in use
        # there, even megabytes of arguments.
        self.answer = copy(answer) if isinstance(answer, NsmError) else answer
        self._done.set()

    async def _give_up(self) -> None:
        wanted = self._wanted
        with trio.move_on_after(GRACE_S):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(_then_cancel, wanted, nursery.cancel_scope)
                nursery.start_soon(_then_cancel, self._done, nursery.cancel_scope)
        if self._claims == 0:
            self.stop.ask("cancelled")


async def _then_cancel(event: trio.Event, scope: trio.CancelScope) -> None:
    await event.wait()
    scope.cancel()


def who_runs(calls: Sequence[ProgramCall]) -> str:
    """Programs, and the clients that asked for them, for the log."""
    told = [
        f"{call.asked.program!r} for {call.asked.caller.client!r} in {call.asked.caller.scope!r}"
        for call in calls[:MAX_TOLD]
    ]
    if len(calls) > MAX_TOLD:
        told.append(f"{len(calls) - MAX_TOLD} more")
    return f"programs of the bridge: {', '.join(told)}"


class FinishedCalls:
    """The last finished calls; the oldest are dropped.

    Calls that started nothing are dropped first: a client that floods these does not displace
    others, and if it asks for them again, they are refused again, with nothing started.
    """

    def __init__(self) -> None:
        self._calls: OrderedDict[Key, ProgramCall] = OrderedDict()

    def __repr__(self) -> str:
        return f"<FinishedCalls {len(self._calls)} calls>"

    def get(self, key: Key) -> ProgramCall | None:
        """Return the call of that key, if it is still there."""
        return self._calls.get(key)

    def add(self, key: Key, call: ProgramCall) -> None:
        """Keep a call that has its answer."""
        # The arguments are in the ledger, and may be megabytes each.
        call.asked = replace(call.asked, arguments=())
        self._calls.pop(key, None)
        self._calls[key] = call
        while len(self._calls) > MAX_KEPT:
            del self._calls[self._least(key)]
        while len(self._calls) > 1 and sum(map(_size_of, self._calls.values())) > MAX_KEPT_BYTES:
            self._calls.popitem(last=False)

    def _least(self, newest: Key) -> Key:
        refused = (key for key, call in self._calls.items() if not call.started and key != newest)
        return next(refused, next(iter(self._calls)))


def _size_of(call: ProgramCall) -> int:
    """Memory of a call's output: Python uses up to four bytes for a character."""
    if not isinstance(call.answer, ProgramEnd):
        return 0
    return sys.getsizeof(call.answer.stdout) + sys.getsizeof(call.answer.stderr)


def fault() -> InternalError:
    """Make the error for a bug of nsm itself."""
    return InternalError(
        "nsm failed to carry out the call.",
        hint="`nsm bridge audit` says whether the program was started; the supervisor's log has "
        "the details.",
    )


def outcome_of(answer: ProgramEnd | NsmError) -> str:
    """One word for the outcome of a call: `ok`, `error`, `timeout`, `cancelled`, `shutdown`,
    `refused`, `unaudited`, `fault`.
    """
    if isinstance(answer, AuditFailedError):
        return "unaudited"
    if isinstance(answer, InternalError):
        return "fault"
    if isinstance(answer, NsmError):
        return "refused"
    if answer.why_stopped is not None:
        return answer.why_stopped
    return "ok" if answer.succeeded else "error"


async def check_never_started(asked: RecordedCall, ledger: Ledger) -> None:
    """Make sure that an earlier supervisor did not start this call: `FateUnknownError` if it may
    have, `AuditFailedError` if nobody knows.
    """
    fate = await ledger.fate(asked.id, asked.caller.scope)
    if fate != "never":
        raise FateUnknownError(
            _FATES[fate],
            hint="`nsm bridge audit` shows what is known. Look at what it has done before you "
            "start it again.",
            data={"execution_id": asked.id},
        )


async def record_refusal(call: ProgramCall, error: NsmError, ledger: Ledger) -> NsmError:
    """Record that nothing is started for a call. Returns the error; raises `AuditFailedError` if
    that could not be recorded.
    """
    call.admitted, call.refused = False, True
    try:
        await ledger.refuse(call.asked, error.message)
    except AuditFailedError:
        # The client learns that nothing was started, as the supervisor ends.
        if not call.late:
            raise
    return error


def recorded_arguments(given: object) -> tuple[str, ...]:
    """Arguments of unknown shape for the ledger: plain values as they are, bounded.

    Of other values only the type is given: megabytes of empty lists would take seconds to turn into
    text.
    """
    if not isinstance(given, list):
        return ()
    return tuple(recorded_text(each) for each in cast("list[object]", given)[:MAX_ARGUMENTS])


def recorded_text(value: object) -> str:
    if isinstance(value, str):
        return value
    return str(value) if isinstance(value, int | float | None) else f"<{type(value).__name__}>"
