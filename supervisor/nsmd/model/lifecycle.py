"""The lives of a session and of the supervisor.

A session's is one table: (state, event) gives (next state, effects). It is pure: no clock, no I/O.
`nsmd.sessions.session` feeds events in and carries the effects out; timers are effects too.
`docs/explanation/architecture.md` draws it. The supervisor's ends as it was asked to.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import Enum
from typing import Literal

import trio

from nsm.wire.errors import DrainingError, NsmError, ShuttingDownError


class SessionState(Enum):
    """State of a session. `nsm ps` shows these values."""

    STARTING = "starting"
    IDLE = "idle"
    RUNNING = "running"
    ENDING = "ending"
    ENDED = "ended"

    __hash__ = object.__hash__  # `Enum` hashes the name, in Python; each step looks in a table


class LifecycleEvent(Enum):
    """Event in the life of a session."""

    READY = "the agent is ready"
    RESUMED = "its agent, which runs an execution, was taken up from an earlier supervisor"
    SUBMITTED = "an execution was queued"
    ANSWERED = "the running execution has its answer and nothing is queued"
    ANSWERED_MORE = "the running execution has its answer and another is queued"
    IDLE_EXPIRED = "the idle limit passed"
    STILL_ACTIVE = "background processes are alive at the idle limit"
    END = "somebody or some limit ends the session"
    LOST = "the agent's channel ended or the jail died"
    GONE = "nothing of the jail is left"

    __hash__ = object.__hash__  # as in `SessionState`


class Effect(Enum):
    """Action of the session's task."""

    SEND_NEXT = "send the first queued execution to the agent"
    ARM_IDLE = "start the idle timer"
    DISARM_IDLE = "stop the idle timer"
    ASK_ACTIVITY = "ask the agent for live background processes"
    KILL = "kill the jail"
    FAIL_ALL = "fail what runs and what is queued with the reason"
    REPORT = "tell the registry that the session is over"


class LifecycleError(AssertionError):
    """An event that cannot occur in that state: a bug of nsm."""

    def __init__(self, state: SessionState, event: LifecycleEvent) -> None:
        super().__init__(f"event {event.name} is impossible in state {state.name}")


_S, _E, _F = SessionState, LifecycleEvent, Effect

_OVER = (_S.ENDING, (_F.DISARM_IDLE, _F.KILL))
_IGNORED_WHILE_ENDING = (
    _E.READY,
    _E.RESUMED,
    _E.SUBMITTED,
    _E.ANSWERED,
    _E.ANSWERED_MORE,
    _E.IDLE_EXPIRED,
    _E.STILL_ACTIVE,
    _E.END,
    _E.LOST,
)

TABLE: Mapping[tuple[SessionState, LifecycleEvent], tuple[SessionState, tuple[Effect, ...]]] = {
    # A session may be claimed and given work while it still starts. The work waits, and is
    # announced again by a SUBMITTED of its own after READY.
    (_S.STARTING, _E.SUBMITTED): (_S.STARTING, ()),
    (_S.STARTING, _E.READY): (_S.IDLE, (_F.ARM_IDLE,)),
    (_S.STARTING, _E.RESUMED): (_S.RUNNING, ()),
    (_S.STARTING, _E.END): _OVER,
    (_S.STARTING, _E.LOST): _OVER,
    (_S.STARTING, _E.GONE): (_S.ENDED, (_F.FAIL_ALL, _F.REPORT)),
    (_S.IDLE, _E.SUBMITTED): (_S.RUNNING, (_F.DISARM_IDLE, _F.SEND_NEXT)),
    (_S.IDLE, _E.IDLE_EXPIRED): (_S.IDLE, (_F.ASK_ACTIVITY,)),
    (_S.IDLE, _E.STILL_ACTIVE): (_S.IDLE, (_F.ARM_IDLE,)),
    (_S.IDLE, _E.END): _OVER,
    (_S.IDLE, _E.LOST): _OVER,
    (_S.RUNNING, _E.SUBMITTED): (_S.RUNNING, ()),
    (_S.RUNNING, _E.ANSWERED): (_S.IDLE, (_F.ARM_IDLE,)),
    (_S.RUNNING, _E.ANSWERED_MORE): (_S.RUNNING, (_F.SEND_NEXT,)),
    # The timer and the agent's answer to ASK_ACTIVITY may cross a new execution.
    (_S.RUNNING, _E.IDLE_EXPIRED): (_S.RUNNING, ()),
    (_S.RUNNING, _E.STILL_ACTIVE): (_S.RUNNING, ()),
    (_S.RUNNING, _E.END): _OVER,
    (_S.RUNNING, _E.LOST): _OVER,
    **{(_S.ENDING, event): (_S.ENDING, ()) for event in _IGNORED_WHILE_ENDING},
    (_S.ENDING, _E.GONE): (_S.ENDED, (_F.FAIL_ALL, _F.REPORT)),
    **{(_S.ENDED, event): (_S.ENDED, ()) for event in _IGNORED_WHILE_ENDING},
}


def advance(state: SessionState, event: LifecycleEvent) -> tuple[SessionState, tuple[Effect, ...]]:
    """Return the next state, and the effects to carry out."""
    try:
        return TABLE[state, event]
    except KeyError:
        raise LifecycleError(state, event) from None


How = Literal["end", "leave", "reload"]
"""Ways to end: end all sessions; leave them to the holder of their descriptors; or leave them to
the program that this process becomes.
"""


class Shutdown:
    """Request to end, made once or several times. The first one counts, but `end` beats the ways
    that keep sessions.

    Attributes:
        draining: why nothing new is accepted; empty while it is.
    """

    def __init__(self) -> None:
        self.how: How | None = None
        self.draining = ""
        self.then: How | None = None
        self._asked, self._end_asked = trio.Event(), trio.Event()

    def __repr__(self) -> str:
        return f"<Shutdown {self.how or 'not yet'}>"

    def ask(self, how: How) -> None:
        """Ask the supervisor to end. May be repeated."""
        if self.how is None or how == "end":
            self.how = how
        self._asked.set()
        if how == "end":
            self._end_asked.set()

    def refusal(self, *, live: bool) -> NsmError | None:
        """Return why code is refused now; None if it is accepted. None of it was run."""
        if not self.draining or (live and self.then == "leave"):
            return None
        if self.then is not None:
            return ShuttingDownError(
                "The supervisor is about to end, and accepts nothing new; the code was not run.",
                hint="Try again in a moment: the next call starts a new supervisor.",
            )
        return DrainingError(
            f"The supervisor is being drained ({self.draining}) and accepts nothing new; the code "
            "was not run.",
            hint="Sessions are as they were. `nsm drain --cancel` lets it accept work again.",
        )

    async def wait(self) -> How:
        """Wait for a request."""
        await self._asked.wait()
        assert self.how is not None
        return self.how

    async def wait_for_end(self, then: Callable[[], object]) -> None:
        """Wait until all sessions must end, too; then call a function."""
        await self._end_asked.wait()
        then()
