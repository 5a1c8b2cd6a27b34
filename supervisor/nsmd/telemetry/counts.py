"""Counters and histograms, fed by events.

A call passes here several times, and each time only looks up a number and adds to it. How many
numbers there are is bounded: texts that clients choose freely are no labels.

These are not prometheus-client's counters and histograms. That library is imported when somebody
first asks for the metrics; its counters took 5 us for what takes 0.6 here, and its histograms have
neither percentiles nor the longest duration.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping
from typing import Any, Literal, cast

from nsm.wire.errors import NsmError
from nsmd.agent_link.job_frames import JobFacts
from nsmd.bridge.calls import ProgramCall
from nsmd.bridge.programs import ProgramEnd
from nsmd.model.events import EventKind, Events, Happening
from nsmd.model.values import RunOutcome
from nsmd.sessions.execution import Execution
from nsmd.sessions.jobs import JobStarted
from nsmd.sessions.session import Session
from nsmd.telemetry.families import FAMILIES, Labels, Value
from nsmd.telemetry.histogram import Histogram

ExecutionOutcome = Literal["ok", "error", "timeout", "interrupted", "lost"]

OWN = "(own)"
"""Label for environments of one client's entry: the client chooses their names."""

OTHER = "(other)"
"""Label for environments beyond `MAX_ENVIRONMENTS`."""

MAX_ENVIRONMENTS = 100
"""Largest number of environments with a label of their own."""


def outcome_of(answer: RunOutcome | NsmError | None) -> ExecutionOutcome:
    """Outcome of an execution in a word."""
    if not isinstance(answer, RunOutcome):
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
        events: bus of events; also gets limits that were hit.
        for_everyone: returns whether an environment of that name exists for everyone.

    Attributes:
        counted: counters, and connected clients, by the names of metrics.
        timed: histograms.
    """

    def __init__(self, events: Events, for_everyone: Callable[[str], bool]) -> None:
        self.counted = {name: defaultdict[Labels, int](int) for name in FAMILIES}
        self.timed = {name: defaultdict[Labels, Histogram](Histogram) for name in FAMILIES}
        self._events = events
        self._for_everyone = for_everyone
        self._labels: dict[str, str] = {}
        self._starting: dict[str, float] = {}  # start time by session
        takers: Mapping[EventKind, Callable[[Happening], None]] = {
            "execution_finished": self._execution_finished,
            "session_started": self._session_started,
            "session_ready": self._session_ready,
            "session_ended": self._session_ended,
            "session_taken_up": self._session_taken_up,
            "job_started": self._job_started,
            "job_ended": self._job_ended,
            "pool_hit": self._pool_taken,
            "pool_miss": self._pool_taken,
            "pool_refilled": self._pool_refilled,
            "client_came": self._client_came,
            "client_left": self._client_left,
            "memory_pressure": self._memory_pressure,
            "configuration_reloaded": self._reloaded,
            "restarted": self._restarted,
            "program_ended": self._program_ended,
        }
        for kind, taker in takers.items():
            events.subscribe(taker, (kind,))

    def __repr__(self) -> str:
        return f"<Counts of {len(self._labels)} environments>"

    def read(self) -> dict[str, Mapping[Labels, Value]]:
        """Copy the present state, from which another thread makes text."""
        latency = self.timed["nsm_execution_latency_seconds"]
        return {
            "nsm_executions": {labels: each.count for labels, each in latency.items()},
            **{name: dict(values) for name, values in self.counted.items() if values},
            **{
                name: {labels: each.copy() for labels, each in values.items()}
                for name, values in self.timed.items()
                if values
            },
        }

    def _add(self, name: str, *labels: str, by: int = 1) -> None:
        self.counted[name][labels] += by

    def _took(self, name: str, seconds: float, *labels: str) -> None:
        self.timed[name][labels].add(seconds)

    def environment_of(self, session: Session) -> str:
        """Label of a session's environment."""
        tenancy = session.tenancy
        if tenancy is not None and tenancy.own is not None:
            return OWN
        return self.label(session.spec.environment.name)

    def label(self, name: str) -> str:
        """Label of an environment of that name, unless it is a client's own."""
        return self._labels.get(name) or self._new_label(name)

    def _new_label(self, name: str) -> str:
        if not self._for_everyone(name):
            return OWN  # not remembered, since one of that name for everyone may appear later
        if len(self._labels) >= MAX_ENVIRONMENTS:
            return OTHER
        self._labels[name] = name
        return name

    # Events.

    def _execution_finished(self, happening: Happening) -> None:
        execution = happening.subject
        assert isinstance(execution, Execution), "that is what finishes"
        env = self.environment_of(execution.session)
        answer, submitted_s, sent_s = execution.answer, execution.submitted_s, execution.sent_s
        if execution.earlier:  # nobody knows how long it has taken
            self._add("nsm_executions_taken_up", env, outcome_of(answer))
        else:
            self._took(
                "nsm_execution_latency_seconds",
                happening.at_s - submitted_s,
                env,
                outcome_of(answer),
            )
        if sent_s is not None and not execution.earlier:
            self._took("nsm_execution_wait_seconds", sent_s - submitted_s, env)
        if isinstance(answer, RunOutcome) and answer.denials:
            self._add("nsm_denials", env)
        for limit in execution.limit_events:
            self._add("nsm_limits_hit", limit.kind, limit.enforced_by, by=limit.times)
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
            self._took(
                "nsm_session_start_seconds",
                happening.at_s - began_s,
                self.environment_of(session),
                kind,
            )

    def _session_ended(self, happening: Happening) -> None:
        session = happening.subject
        assert isinstance(session, Session), "that is what ends"
        env = self.environment_of(session)
        lost = bool(happening.facts.get("lost"))
        if self._starting.pop(happening.session, None) is not None and lost:
            self._add("nsm_session_start_failures", env)
        if session.tenancy is not None:
            self._add("nsm_sessions_ended", env, "lost" if lost else "ended")
        if session.jobs:
            self._add("nsm_jobs_ended", env, "lost", by=len(session.jobs))

    def _session_taken_up(self, happening: Happening) -> None:
        session = happening.subject
        assert isinstance(session, Session), "that is what is taken up"
        self._add("nsm_sessions_taken_up", self.environment_of(session))

    def _job_started(self, happening: Happening) -> None:
        session, _ = cast("tuple[Session, JobStarted]", happening.subject)
        self._add("nsm_jobs_started", self.environment_of(session))

    def _job_ended(self, happening: Happening) -> None:
        session, job = cast("tuple[Session, JobFacts]", happening.subject)
        self._add("nsm_jobs_ended", self.environment_of(session), job.outcome)

    def _pool_taken(self, happening: Happening) -> None:
        session = happening.subject
        assert isinstance(session, Session), "that is what the pool has"
        result = "hit" if happening.kind == "pool_hit" else "miss"
        self._add("nsm_pool_takes", self.environment_of(session), result)

    def _pool_refilled(self, happening: Happening) -> None:
        session = happening.subject
        assert isinstance(session, Session), "that is what the pool has"
        self._took(
            "nsm_pool_refill_seconds", happening.facts["seconds"], self.environment_of(session)
        )

    def _client_came(self, happening: Happening) -> None:
        self._add("nsm_clients", happening.facts["protocol"])
        self._add("nsm_clients_connected", happening.facts["protocol"])

    def _client_left(self, happening: Happening) -> None:
        self._add("nsm_clients", happening.facts["protocol"], by=-1)

    def _restarted(self, happening: Happening) -> None:
        # A listener that knows the number says it; else this counts as one more.
        told: Any = happening.facts.get("restarts")
        restarts = self.counted["nsm_restarts_survived"]
        restarts[()] = told if isinstance(told, int) else restarts[()] + 1

    def _memory_pressure(self, happening: Happening) -> None:
        self._add("nsm_memory_pressure")
        self._add("nsm_memory_pressure_sessions_ended", by=len(happening.facts.get("sessions", ())))

    def _reloaded(self, happening: Happening) -> None:
        del happening
        self._add("nsm_configuration_reloads")

    def _program_ended(self, happening: Happening) -> None:
        call, outcome = happening.subject, happening.facts["outcome"]
        assert isinstance(call, ProgramCall), "that is what ends"
        self._add("nsm_bridge_calls", outcome)
        if isinstance(call.answer, ProgramEnd):
            self._took("nsm_bridge_call_seconds", call.answer.duration_s, outcome)
