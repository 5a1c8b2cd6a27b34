"""Handle of one call of a program, for its caller."""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy

import trio

from nsm.wire.errors import NsmError
from nsmd.bridge.running import Stop
from nsmd.bridge.values import OnLine, ProgramEnd, RecordedCall
from nsmd.model.values import StreamName

GRACE_S = 10.0
"""Time for a client that lost its connection to come back and ask for the same call."""


MAX_TOLD = 10
"""Largest number of programs named in one line of the log."""


class ProgramCall:
    """A call, from its request until its answer is forgotten.

    Args:
        asked: its facts for the ledger.
        on_line: receives its output; None if nobody does.
        nursery: for the task that waits for a lost client.

    Attributes:
        admitted: it is one of those that may run now.
        late: it came when the supervisor was already ending, and starts nothing.
        refused: nothing will be started; only its line in the ledger is missing.
        started: the program was started.
        answer: its answer; None until there is one.
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
        """Wait for the outcome.

        Cancellation: only the waiter ends; the program continues.

        Raises:
            NsmError: it was refused, or could not be started.
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
