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

from nsmd.agent_link.frames import JobFacts
from nsmd.audit.recorder import NOT_TOLD
from nsmd.bridge.calls import ProgramCall
from nsmd.model.events import EventKind, SupervisorEvent
from nsmd.model.values import ClientIdentity
from nsmd.sessions.execution import Execution
from nsmd.sessions.jobs import JobStarted
from nsmd.sessions.session import Session

MAX_KEPT = 4096
"""Largest number of events; each takes some 500 bytes."""

_MOST_CHARS = 200
"""Largest size of one text, since clients choose their names."""

_MOST_ITEMS = 50
"""Largest number of items of one list."""

_NO_FACTS: Mapping[str, Any] = {}


_Kept = tuple[EventKind, float, str, dict[str, Any], Mapping[str, Any]]
"""Kind, time, session, facts of the subject, further facts."""


class RingEvent(NamedTuple):
    """One event: its number since the supervisor started (1, 2, 3, ...), its Unix time by the clock
    at that time, its session (empty for none), and plain facts.
    """

    number: int
    kind: str
    at: float
    session: str
    facts: Mapping[str, Any]


class Ring:
    """Latest events, for people who watch."""

    def __init__(self, size: int = MAX_KEPT) -> None:
        self.count = 0
        self._kept: deque[_Kept] = deque(maxlen=size)
        self._more: trio.Event | None = None  # made when somebody waits

    def __repr__(self) -> str:
        return f"<Ring of {len(self._kept)} of {self.count}>"

    def add(self, event: SupervisorEvent) -> None:
        """Add an event (a `Listener` of events)."""
        if event.kind == "operation" and event.facts["op"] in NOT_TOLD:
            return
        self.count += 1
        more = event.facts
        # A call passes here several times: only plain values are kept, and formatted when somebody
        # asks.
        about = _about(event, event.subject)
        if isinstance(event.subject, ClientIdentity):  # whose arguments may be anything
            about |= {"op": more["op"], "error": more.get("error")}
            more = _NO_FACTS
        self._kept.append((event.kind, time(), event.session, about, more))
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
        return [_event(number, each) for number, each in enumerate(kept, begin)]

    async def more(self, number: int) -> None:
        """Wait until there is an event after that number."""
        while self.count <= number:
            if self._more is None:
                self._more = trio.Event()
            await self._more.wait()


def _about(event: SupervisorEvent, subject: object) -> dict[str, Any]:
    """Facts of the subject of an event."""
    match subject:
        case Execution():
            session, client = subject.session, subject.request.client
            about = {"execution_id": subject.id, "env": subject.origin.env, "name": session.name}
            about["client"] = client.name
            if event.kind == "execution_finished":
                took_s = None if subject.earlier else event.at_s - subject.submitted_s
                return {**about, "outcome": subject.outcome, "duration_s": took_s}
            return about
        case Session():
            about = {"env": subject.spec.environment.name}
            if (tenancy := subject.tenancy) is not None:  # else it is a spare
                about |= {"name": tenancy.name, "client": tenancy.client}
            return about
        case (Session() as session, JobStarted() as started):
            return {**_job(session, started.job), "client": started.client.name}
        case (Session() as session, JobFacts() as job):
            ended = {"outcome": job.outcome, "exit_code": job.exit_code}
            return {**_job(session, job), **ended, "duration_s": job.duration_s}
        case ProgramCall():
            return {"call_id": subject.id, "client": subject.asked.caller.client}
        case ClientIdentity():
            return {"client": subject.name}
        case _:
            return {}


def _job(session: Session, job: JobFacts) -> dict[str, Any]:
    return {"job": job.job, "env": session.spec.environment.name, "name": session.name}


def _event(number: int, kept: _Kept) -> RingEvent:
    kind, at, session, about, more = kept
    facts = {name: _plain(value) for name, value in {**about, **more}.items()}
    return RingEvent(number, kind, at, session, facts)


def _plain(value: object) -> object:
    if value is None or isinstance(value, int | float):
        return value
    if isinstance(value, list | tuple):
        items = cast("Sequence[object]", value)
        return [str(item)[:_MOST_CHARS] for item in items[:_MOST_ITEMS]]
    return str(value)[:_MOST_CHARS]
