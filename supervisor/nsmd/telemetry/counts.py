"""Counters and histograms, fed by what happens.

A call passes here several times, so what is done then is looking up a number and adding to it. How
many numbers there are is bounded: what clients choose freely is no label.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping
from typing import Any, Literal

from nsm.wire.errors import NsmError
from nsmd.bridge.call_handle import ProgramCall
from nsmd.bridge.values import Ended
from nsmd.model.events import Events, Happening
from nsmd.model.values import RunResult
from nsmd.sessions.execution import Execution
from nsmd.sessions.session import Session
from nsmd.telemetry.families import Labels
from nsmd.telemetry.histogram import Histogram

ExecutionOutcome = Literal["ok", "error", "timeout", "interrupted", "lost"]

OWN = "(own)"
"""Environments of one client's entry: their names are the client's."""

OTHER = "(other)"
"""What is beyond `MAX_ENVIRONMENTS`."""

MAX_ENVIRONMENTS = 100
"""Names of environments that are told apart."""


def outcome_of(answer: RunResult | NsmError | None) -> ExecutionOutcome:
    """Name the outcome of an execution in a word."""
    if not isinstance(answer, RunResult):
        return "lost"
    outcome = answer.outcome
    if outcome.timed_out:
        return "timeout"
    if outcome.interrupted:
        return "interrupted"
    return "error" if outcome.exit_code else "ok"


class Counts:
    """Counters and histograms.

    Args:
        events: is told of limits that were hit, beside what it tells.
        for_everyone: whether an environment of that name is there for everyone.

    Attributes:
        latency: of executions, by environment and outcome; their number is that of executions.
        wait: of executions that began, by environment.
        runs_taken_up: executions that an earlier supervisor began, by environment and outcome.
        limits_hit: by kind and enforcer.
        denials: by environment.
        starts: of sessions, by environment and kind of jail.
        start_failures: by environment.
        ended: by environment and cause.
        taken_up: by environment.
        takes: from the pool, by environment and result.
        refills: by environment.
        clients: that are there, by protocol; `connected` have come.
        happened: other events, by kind.
        programs: calls of the bridge that are over, by outcome; `program_time` of those started.
        pressed_out: sessions that had to go for want of memory.
        restarts: that sessions have outlived.
    """

    def __init__(self, events: Events, for_everyone: Callable[[str], bool]) -> None:
        self.latency: defaultdict[Labels, Histogram] = defaultdict(Histogram)
        self.wait: defaultdict[str, Histogram] = defaultdict(Histogram)
        self.runs_taken_up: defaultdict[Labels, int] = defaultdict(int)
        self.limits_hit: defaultdict[Labels, int] = defaultdict(int)
        self.denials: defaultdict[str, int] = defaultdict(int)
        self.starts: defaultdict[Labels, Histogram] = defaultdict(Histogram)
        self.start_failures: defaultdict[str, int] = defaultdict(int)
        self.ended: defaultdict[Labels, int] = defaultdict(int)
        self.taken_up: defaultdict[str, int] = defaultdict(int)
        self.takes: defaultdict[Labels, int] = defaultdict(int)
        self.refills: defaultdict[str, Histogram] = defaultdict(Histogram)
        self.clients: defaultdict[str, int] = defaultdict(int)
        self.connected: defaultdict[str, int] = defaultdict(int)
        self.happened: defaultdict[str, int] = defaultdict(int)
        self.programs: defaultdict[str, int] = defaultdict(int)
        self.program_time: defaultdict[str, Histogram] = defaultdict(Histogram)
        self.pressed_out = 0
        self.restarts = 0
        self._events = events
        self._for_everyone = for_everyone
        self._labels: dict[str, str] = {}
        self._starting: dict[str, float] = {}  # since when, by session
        self._takers: Mapping[str, Callable[[Happening], None]] = {
            "execution_finished": self._execution_finished,
            "session_started": self._session_started,
            "session_ready": self._session_ready,
            "session_ended": self._session_ended,
            "session_taken_up": self._session_taken_up,
            "pool_hit": self._pool_taken,
            "pool_miss": self._pool_taken,
            "pool_refilled": self._pool_refilled,
            "client_came": self._client_came,
            "client_left": self._client_left,
            "memory_pressure": self._memory_pressure,
            "configuration_reloaded": self._other,
            "restarted": self._restarted,
            "program_ended": self._program_ended,
        }

    def __repr__(self) -> str:
        return f"<Counts of {len(self._labels)} environments>"

    def take(self, happening: Happening) -> None:
        """Something has happened (a `Listener` of events)."""
        taker = self._takers.get(happening.kind)
        if taker is not None:
            taker(happening)

    def environment_of(self, session: Session) -> str:
        """The label of a session's environment."""
        tenancy = session.tenancy
        if tenancy is not None and tenancy.own is not None:
            return OWN
        return self.label(session.spec.environment.name)

    def label(self, name: str) -> str:
        """The label of an environment of that name that is no client's own."""
        return self._labels.get(name) or self._new_label(name)

    def _new_label(self, name: str) -> str:
        if not self._for_everyone(name):
            return OWN  # not for good: there may be one of that name for everyone later
        if len(self._labels) >= MAX_ENVIRONMENTS:
            return OTHER
        self._labels[name] = name
        return name

    # What happens.

    def _execution_finished(self, happening: Happening) -> None:
        execution = happening.subject
        assert isinstance(execution, Execution), "that is what finishes"
        env = self.environment_of(execution.session)
        answer, submitted_s, sent_s = execution.answer, execution.submitted_s, execution.sent_s
        if execution.earlier:  # how long it has taken, nobody knows
            self.runs_taken_up[env, outcome_of(answer)] += 1
        else:
            self.latency[env, outcome_of(answer)].add(happening.at_s - submitted_s)
        if sent_s is not None and not execution.earlier:
            self.wait[env].add(sent_s - submitted_s)
        if isinstance(answer, RunResult) and answer.denials:
            self.denials[env] += 1
        for limit in execution.limit_events:
            self.limits_hit[limit.kind, limit.enforced_by] += limit.times
            self._events.publish(
                "limit_hit",
                session=happening.session,
                subject=execution,
                limit=limit.kind,
                limit_value=limit.limit,
                enforced_by=limit.enforced_by,
                what=limit.what,
            )

    def _session_started(self, happening: Happening) -> None:
        self._starting[happening.session] = happening.at_s

    def _session_ready(self, happening: Happening) -> None:
        session = happening.subject
        assert isinstance(session, Session), "that is what is ready"
        began_s = self._starting.pop(happening.session, None)
        if began_s is not None:
            kind = "cold" if session.policy is None else session.policy.kind
            self.starts[self.environment_of(session), kind].add(happening.at_s - began_s)

    def _session_ended(self, happening: Happening) -> None:
        session = happening.subject
        assert isinstance(session, Session), "that is what ends"
        env = self.environment_of(session)
        lost = bool(happening.facts.get("lost"))
        if self._starting.pop(happening.session, None) is not None and lost:
            self.start_failures[env] += 1
        if session.tenancy is not None:
            self.ended[env, "lost" if lost else "ended"] += 1

    def _session_taken_up(self, happening: Happening) -> None:
        session = happening.subject
        assert isinstance(session, Session), "that is what is taken up"
        self.taken_up[self.environment_of(session)] += 1

    def _pool_taken(self, happening: Happening) -> None:
        session = happening.subject
        assert isinstance(session, Session), "that is what the pool has"
        result = "hit" if happening.kind == "pool_hit" else "miss"
        self.takes[self.environment_of(session), result] += 1

    def _pool_refilled(self, happening: Happening) -> None:
        session = happening.subject
        assert isinstance(session, Session), "that is what the pool has"
        self.refills[self.environment_of(session)].add(happening.facts["seconds"])

    def _client_came(self, happening: Happening) -> None:
        self.clients[happening.facts["protocol"]] += 1
        self.connected[happening.facts["protocol"]] += 1

    def _client_left(self, happening: Happening) -> None:
        self.clients[happening.facts["protocol"]] -= 1

    def _restarted(self, happening: Happening) -> None:
        # Whoever remembers how often it was says so; else this is once more.
        told: Any = happening.facts.get("restarts")
        self.restarts = told if isinstance(told, int) else self.restarts + 1

    def _memory_pressure(self, happening: Happening) -> None:
        self.happened[happening.kind] += 1
        self.pressed_out += len(happening.facts.get("sessions", ()))

    def _other(self, happening: Happening) -> None:
        self.happened[happening.kind] += 1

    def _program_ended(self, happening: Happening) -> None:
        call, outcome = happening.subject, happening.facts["outcome"]
        assert isinstance(call, ProgramCall), "that is what ends"
        self.programs[outcome] += 1
        if isinstance(call.answer, Ended):
            self.program_time[outcome].add(call.answer.duration_s)
