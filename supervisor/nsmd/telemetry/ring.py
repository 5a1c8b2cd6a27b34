"""The latest events, for people who watch.

All readers share one ring, and each remembers its position. So a slow one delays nobody and takes
no memory: it only misses events that the ring has dropped meanwhile, and learns their number.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from itertools import islice
from time import time
from typing import Any, NamedTuple, cast

import trio

from nsmd.agent_link.job_frames import JobFacts
from nsmd.audit.recorder import NOT_TOLD
from nsmd.bridge.calls import ProgramCall
from nsmd.model.events import EventKind, Happening
from nsmd.model.values import ClientIdentity
from nsmd.sessions.execution import Execution
from nsmd.sessions.jobs import JobStarted
from nsmd.sessions.session import Session
from nsmd.telemetry.counts import outcome_of

MAX_KEPT = 4096
"""Largest number of events; each takes some 500 bytes."""

_MOST_CHARS = 200
"""Largest size of one text, since clients choose their names."""

_MOST_ITEMS = 50
"""Largest number of items of one list."""


_Values = tuple[str | float | None, ...]

_Kept = tuple[EventKind, float, str, tuple[str, ...], _Values, Mapping[str, Any]]
"""Kind, time, session, names and values of the subject, further facts."""

_SPARE = ("env",)
_SESSION = ("env", "name", "client")
_EXECUTION = ("execution_id", "env", "name", "client")
_FINISHED = (*_EXECUTION, "outcome", "duration_s")
_OF_JOB = ("job", "env", "name")
_JOB = (*_OF_JOB, "client")
_JOB_ENDED = (*_OF_JOB, "outcome", "exit_code", "duration_s")
_PROGRAM = ("call_id", "client")
_OPERATION = ("client", "op", "error")
_NO_FACTS: Mapping[str, Any] = {}


class RingEvent(NamedTuple):
    """One event.

    Attributes:
        number: 1, 2, 3, ... since the supervisor started.
        at: Unix time, by the clock at that time.
        session: id of the session; empty for none.
        facts: plain values.
    """

    number: int
    kind: str
    at: float
    session: str
    facts: Mapping[str, Any]


class Ring:
    """Latest events, for people who watch.

    Attributes:
        count: number of events so far.
    """

    def __init__(self, size: int = MAX_KEPT) -> None:
        self.count = 0
        self._kept: deque[_Kept] = deque(maxlen=size)
        self._more: trio.Event | None = None  # made when somebody waits

    def __repr__(self) -> str:
        return f"<Ring of {len(self._kept)} of {self.count}>"

    def take(self, happening: Happening) -> None:
        """Add an event (a `Listener` of events)."""
        if happening.kind == "operation" and happening.facts["op"] in NOT_TOLD:
            return
        self.count += 1
        subject, facts = happening.subject, happening.facts
        names: tuple[str, ...] = ()
        about: _Values = ()
        # A call passes here several times: only plain values are kept, and formatted when somebody
        # asks.
        if isinstance(subject, Execution):
            request = subject.request
            names = _EXECUTION
            about = (subject.id, subject.origin.env, subject.session.name, request.client.name)
            if happening.kind == "execution_finished":
                took_s = None if subject.earlier else happening.at_s - subject.submitted_s
                names, about = _FINISHED, (*about, outcome_of(subject.answer), took_s)
        elif isinstance(subject, Session):
            tenancy, env = subject.tenancy, subject.spec.environment.name
            if tenancy is None:
                names, about = _SPARE, (env,)
            else:
                names, about = _SESSION, (env, tenancy.name, tenancy.client)
        elif happening.kind == "job_started":
            session, started = cast("tuple[Session, JobStarted]", subject)
            names, about = _JOB, (*_of_job(session, started.job), started.client.name)
        elif happening.kind == "job_ended":
            session, job = cast("tuple[Session, JobFacts]", subject)
            names = _JOB_ENDED
            about = (*_of_job(session, job), job.outcome, job.exit_code, job.duration_s)
        elif isinstance(subject, ProgramCall):
            names, about = _PROGRAM, (subject.id, subject.asked.caller.client)
        elif isinstance(
            subject, ClientIdentity
        ):  # of an operation, whose arguments may be anything
            names, about = _OPERATION, (subject.name, facts["op"], facts.get("error"))
            facts = _NO_FACTS
        self._kept.append((happening.kind, time(), happening.session, names, about, facts))
        if self._more is not None:
            self._more.set()
            self._more = None

    def after(self, number: int) -> Sequence[RingEvent]:
        """Events after that number, as far as they are kept; oldest first."""
        if number >= self.count:
            return ()
        first = self.count - len(self._kept) + 1
        begin = max(number + 1, first)
        kept = islice(self._kept, begin - first, None)
        return [_told(number, each) for number, each in enumerate(kept, begin)]

    async def more(self, number: int) -> None:
        """Wait until there is an event after that number."""
        while self.count <= number:
            if self._more is None:
                self._more = trio.Event()
            await self._more.wait()


def _of_job(session: Session, job: JobFacts) -> tuple[str, str, str | None]:
    return job.job, session.spec.environment.name, session.name


def _told(number: int, kept: _Kept) -> RingEvent:
    kind, at, session, names, about, more = kept
    facts: dict[str, Any] = dict(zip(names, about, strict=True))
    facts |= more
    return RingEvent(number, kind, at, session, {name: _plain(facts[name]) for name in facts})


def _plain(value: object) -> object:
    if value is None or isinstance(value, int | float):
        return value
    if isinstance(value, list | tuple):
        items = cast("Sequence[object]", value)
        return [str(item)[:_MOST_CHARS] for item in items[:_MOST_ITEMS]]
    return str(value)[:_MOST_CHARS]
