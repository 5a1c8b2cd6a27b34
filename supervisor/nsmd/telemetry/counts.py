"""Every metric: its name, kind, labels and meaning, for reports and the page of metrics;
and counters and histograms, fed by events.

Counts and reports name a metric as the table does. Names follow Prometheus' conventions: base
units, and `_total` at the end of counters, left out here and added in reports.

A call passes here several times, and each time only looks up a number and adds to it. How many
numbers there are is bounded: texts that clients choose freely are no labels.

These are not prometheus-client's counters and histograms. That library is imported when somebody
first asks for the metrics; its counters took 5 us for what takes 0.6 here, and its histograms have
neither percentiles nor the longest duration.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import takewhile
from typing import Any, Literal, cast

from nsm.wire.tuples import NamedTuple
from nsmd.bridge.programs import ProgramEnd
from nsmd.model.events import EventKind, Events, SupervisorEvent
from nsmd.model.values import RunOutcome
from nsmd.sessions.execution import Execution
from nsmd.sessions.session import Session

Kind = Literal["counter", "gauge", "histogram"]

_TABLE = """\
# Executions
nsm_executions counter env outcome
    Executions that have ended, by outcome.
nsm_execution_latency_seconds histogram env outcome
    Time from the request to the answer: the wait, the start of a session, and the code itself.
nsm_execution_wait_seconds histogram env
    Time from the request until the code is sent to its session: the wait for other executions, and
    for a session to start.
nsm_executions_taken_up counter env outcome
    Executions that an earlier supervisor started and that ended under this one. If the earlier one
    saw the end, too, it has counted them among its own.
nsm_limits_hit counter limit enforced_by
    Number of times that a limit of a session ended or refused something while code ran.
nsm_denials counter env
    Results that name the rules of the jail that stopped the code. One result may name several.

# Jobs
nsm_jobs gauge env
    Jobs that run: programs beside the interpreters of sessions.
nsm_jobs_started counter env
    Jobs that were started.
nsm_jobs_ended counter env outcome
    Jobs that have ended, by outcome. Jobs that ended with their session are `lost`.

# Sessions
nsm_sessions gauge env state
    Sessions that have an owner. Spares are in nsm_pool_spares.
nsm_session_start_seconds histogram env kind
    Time to start a session or a spare, from the decision until it can run code.
nsm_session_start_failures counter env
    Starts of sessions and spares that failed.
nsm_sessions_ended counter env cause
    Sessions that had an owner and have ended.
nsm_sessions_taken_up counter env
    Sessions of an earlier supervisor that this one has taken up.

# GPUs of sessions
nsm_session_gpu_memory_bytes gauge env
    Memory on NVIDIA's GPUs that sessions have. Like the others of this part it is absent while no
    session has a GPU, and where nsm cannot read GPUs.
nsm_session_gpu_use_ratio gauge env
    Share of GPUs' time that sessions had in the last second: 1 for all of one GPU.
nsm_gpu_memory_used_bytes gauge gpu
    Memory of a GPU that all programs of the machine have together.
nsm_gpu_memory_size_bytes gauge gpu
    All memory of a GPU.
nsm_gpu_unreadable gauge
    1 while sessions have GPUs and these cannot be read (`nsm inspect` says why), else 0.

# Pool and templates
nsm_pool_takes counter env result
    Requests to the pool for a session: one was ready (hit), or none was (miss).
nsm_pool_spares gauge env state
    Spares that are ready, and spares that are starting.
nsm_pool_wanted gauge env
    Spares that the pool should keep ready.
nsm_pool_refill_seconds histogram env
    Time to start a spare, from the decision until it can be taken.
nsm_pool_budget_bytes gauge
    Memory that all spares together may use now. It is absent if there is no limit.
nsm_templates gauge
    Templates that run.
nsm_template_memory_bytes gauge
    Memory of all templates: the proportional share (PSS) of each process, whose pages its sessions
    share.

# Clients
nsm_clients gauge protocol
    Clients that are connected and have said who they are.
nsm_clients_connected counter protocol
    Clients that have connected.
nsm_connections gauge
    Connections to the socket, including those that have sent nothing yet.
nsm_connections_limit gauge
    Largest number of connections at a time.
nsm_client_bytes counter protocol direction
    Bytes from clients (in) and to them (out).

# Network of sessions
nsm_proxy_requests counter verdict
    Requests of code to the proxies of sessions, by verdict.
nsm_proxy_bytes counter direction
    Bytes from code to the network (out) and back (in), through the proxies of sessions.
nsm_proxy_connections gauge
    Open connections through the proxies of sessions.
nsm_secret_uses counter
    Requests into which the values of secrets were put.

# Ports of sessions
nsm_ports gauge
    Ports of sessions that are open on the host.
nsm_port_connections gauge
    Open connections to these ports.
nsm_port_connections_accepted counter
    Connections that were accepted.
nsm_port_connections_failed counter
    Connections that were reset because no program listened in the session, or because its agent did
    not answer.
nsm_port_bytes counter direction
    Bytes into sessions (in) and back (out) through these ports.
nsm_ports_not_open gauge
    Ports of the configuration that could not be opened (`nsm port` says why).

# Programs of the host
nsm_bridge_calls counter outcome
    Calls of the bridge that have ended, by outcome. `refused` and `unaudited` (no line could be
    written to the audit) mean that no program was started. `fault` is an error of nsm: the audit
    tells whether a program was started. All other outcomes are of programs that were started.
nsm_bridge_call_seconds histogram outcome
    Running time of bridge programs.
nsm_bridge_calls_running gauge
    Calls of the bridge that are in progress, including those that are about to be refused.
nsm_bridge_audit_failing gauge
    1 while calls of the bridge are refused because they cannot be written to the audit (`nsm
    status` says why), else 0.

# The supervisor itself
nsm_build_info gauge version python
    Always 1; the labels say which nsm and which Python run.
nsm_uptime_seconds gauge
    Time since this supervisor started, or took the place of the one before.
nsm_restarts_survived counter
    Restarts of the supervisor that the present sessions have survived.
nsm_sessions_not_kept gauge
    1 while sessions would not survive the end of this supervisor (`nsm status` says why), else 0.
nsm_audit_lines_lost counter
    Lines of the audit that could not be written, for example because the disk was full.
nsm_draining gauge
    1 while the supervisor drains and refuses new code, else 0.
nsm_event_loop_busy_seconds histogram
    Duration of one pass of the event loop, during which all else waits. Passes are sampled, up to
    ten times a second.
nsm_configuration_reloads counter
    Number of times that the configuration was read again.
nsm_memory_pressure counter
    Number of times that the machine was short of memory and the supervisor ended spares or idle
    sessions.
nsm_memory_pressure_sessions_ended counter
    Idle sessions that were asked to end because the machine was short of memory.
nsm_events counter
    Events that were published (`nsm events` shows them).
process_cpu_seconds counter
    Processor time of the supervisor's own process, user and system.
process_resident_memory_bytes gauge
    Resident memory of the supervisor's own process.
process_virtual_memory_bytes gauge
    Virtual memory of the supervisor's own process.
process_start_time_seconds gauge
    Start time of the supervisor's process, in Unix time.
process_open_fds gauge
    Descriptors that the supervisor has open.
process_max_fds gauge
    Largest number of descriptors that the supervisor may have open.
"""
"""Headings of the page; below each its metrics: name, kind, labels, and indented the meaning."""


class Family(NamedTuple):
    """A metric, whatever the values of its labels."""

    name: str
    kind: Kind
    labels: tuple[str, ...]
    help: str
    group: str

    @property
    def exported_name(self) -> str:
        """Name in reports to Prometheus."""
        return f"{self.name}_total" if self.kind == "counter" else self.name


def _families() -> Iterator[Family]:
    for section in _TABLE.split("\n\n"):
        heading, *lines = section.strip().split("\n")
        for number, line in enumerate(lines):
            if not line.startswith(" "):
                name, kind, *labels = line.split()
                meaning = takewhile(lambda each: each.startswith(" "), lines[number + 1 :])
                text = " ".join(each.strip() for each in meaning)
                yield Family(
                    name, cast("Kind", kind), tuple(labels), text, heading.removeprefix("# ")
                )


FAMILIES: Mapping[str, Family] = {family.name: family for family in _families()}
"""All metrics by name, in the order of the page."""


OWN = "(own)"
"""Label for environments of one client's entry: the client chooses their names."""

OTHER = "(other)"
"""Label for environments beyond `MAX_ENVIRONMENTS`."""

MAX_ENVIRONMENTS = 100
"""Largest number of environments with a label of their own."""


_STEPS = (1.0, 1.25, 1.6, 2.0, 2.5, 3.15, 4.0, 5.0, 6.3, 8.0)
"""Ten steps per decade: ISO 3, the R10 series of preferred numbers."""

_DECADES = range(-5, 4)

BOUNDS: tuple[float, ...] = tuple(
    float(f"{step}e{decade}") for decade in _DECADES for step in _STEPS
)
"""Upper bounds of the buckets, in seconds, from 10 us to more than two hours. Each is some 25 %
above the one before it, so the error of a percentile is at most that.
"""

SHOWN: tuple[int, ...] = tuple(
    index
    for index, bound in enumerate(BOUNDS)
    if 1e-4 <= bound <= 5e3 and index % len(_STEPS) in (0, 4, 7)
)
"""Positions in `BOUNDS` of those that Prometheus gets: 1, 2.5 and 5 of each decade."""


class Histogram:
    """Durations in seconds, in fixed buckets: cheap to add to, with percentiles later. The last
    count is of durations longer than all bounds.
    """

    __slots__ = ("counts", "max_s", "sum_s")

    def __init__(self) -> None:
        self.counts = [0] * (len(BOUNDS) + 1)
        self.sum_s = 0.0
        self.max_s = 0.0

    def __repr__(self) -> str:
        return f"<Histogram of {self.count}, at most {self.max_s:g} s>"

    @property
    def count(self) -> int:
        """Number of durations."""
        return sum(self.counts)

    def copy(self) -> Histogram:
        """Copy its present state."""
        other = Histogram()
        other.counts, other.sum_s, other.max_s = self.counts.copy(), self.sum_s, self.max_s
        return other

    def add(self, seconds: float) -> None:
        """Add a duration; a negative one counts as 0."""
        self.counts[bisect_left(BOUNDS, seconds)] += 1
        if seconds > 0:
            self.sum_s += seconds
            if seconds > self.max_s:
                self.max_s = seconds

    def quantile(self, share: float) -> float | None:
        """Estimate the duration that this share (above 0, at most 1) of them did not exceed; None
        before the first.
        """
        wanted = share * self.count
        seen = 0
        for index, count in enumerate(self.counts):
            if count and seen + count >= wanted:
                lower = BOUNDS[index - 1] if index else 0.0
                upper = BOUNDS[index] if index < len(BOUNDS) else self.max_s
                upper = min(upper, self.max_s)
                return max(0.0, lower + (upper - lower) * (wanted - seen) / count)
            seen += count
        return None

    def shown(self) -> Iterator[tuple[float, int]]:
        """Yield bounds, and the number of durations up to each, for Prometheus; without infinity,
        which would have all.
        """
        seen, index = 0, 0
        for shown in SHOWN:
            seen += sum(self.counts[index : shown + 1])
            index = shown + 1
            yield BOUNDS[shown], seen


def together(histograms: Iterable[Histogram]) -> Histogram:
    """Combine several histograms into one."""
    whole = Histogram()
    for histogram in histograms:
        pairs = zip(whole.counts, histogram.counts, strict=True)
        whole.counts = [one + other for one, other in pairs]
        whole.sum_s += histogram.sum_s
        whole.max_s = max(whole.max_s, histogram.max_s)
    return whole


Labels = tuple[str, ...]
"""Values of a metric's labels, in the order of its `labels`."""

Value = float | Histogram
Readings = Mapping[str, Mapping[Labels, Value]]
"""Metrics by name, with a value for each set of labels."""

COUNTED: tuple[EventKind, ...] = (
    "execution_finished",
    "session_started",
    "session_ready",
    "session_ended",
    "session_taken_up",
    "job_started",
    "job_ended",
    "pool_hit",
    "pool_miss",
    "pool_refilled",
    "client_came",
    "client_left",
    "memory_pressure",
    "configuration_reloaded",
    "restarted",
    "program_ended",
)
"""Events that are counted."""


class Counts:
    """Counters and histograms, by the names of metrics.

    Args:
        events: bus of events; also gets limits that were hit.
        for_everyone: returns whether an environment of that name exists for everyone.
    """

    def __init__(self, events: Events, for_everyone: Callable[[str], bool]) -> None:
        self.counted = {name: defaultdict[Labels, int](int) for name in FAMILIES}
        self.timed = {name: defaultdict[Labels, Histogram](Histogram) for name in FAMILIES}
        self._events = events
        self._for_everyone = for_everyone
        self._labels: dict[str, str] = {}
        self._starting: dict[str, float] = {}  # start time by session
        events.subscribe(self._count, COUNTED)

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

    def _count(self, event: SupervisorEvent) -> None:
        subject, facts = cast("Any", event.subject), event.facts
        match event.kind:
            case "execution_finished":
                self._execution_finished(event, subject)
            case "session_started":
                self._starting[event.session] = event.at_s
            case "session_ready":
                self._session_ready(event, subject)
            case "session_ended":
                self._session_ended(event, subject)
            case "session_taken_up":
                self._add("nsm_sessions_taken_up", self.environment_of(subject))
            case "job_started":
                session, _ = subject
                self._add("nsm_jobs_started", self.environment_of(session))
            case "job_ended":
                session, job = subject
                self._add("nsm_jobs_ended", self.environment_of(session), job.outcome)
            case "pool_hit" | "pool_miss":
                result = event.kind.removeprefix("pool_")
                self._add("nsm_pool_takes", self.environment_of(subject), result)
            case "pool_refilled":
                env = self.environment_of(subject)
                self._took("nsm_pool_refill_seconds", facts["seconds"], env)
            case "client_came":
                self._add("nsm_clients", facts["protocol"])
                self._add("nsm_clients_connected", facts["protocol"])
            case "client_left":
                self._add("nsm_clients", facts["protocol"], by=-1)
            case "memory_pressure":
                self._add("nsm_memory_pressure")
                ended = len(facts.get("sessions", ()))
                self._add("nsm_memory_pressure_sessions_ended", by=ended)
            case "configuration_reloaded":
                self._add("nsm_configuration_reloads")
            case "restarted":
                # A listener that knows the number says it; else this counts as one more.
                told, restarts = facts.get("restarts"), self.counted["nsm_restarts_survived"]
                restarts[()] = told if isinstance(told, int) else restarts[()] + 1
            case "program_ended":
                self._add("nsm_bridge_calls", facts["outcome"])
                if isinstance(answer := subject.answer, ProgramEnd):
                    self._took("nsm_bridge_call_seconds", answer.duration_s, facts["outcome"])
            case _:
                pass

    def _execution_finished(self, event: SupervisorEvent, execution: Execution) -> None:
        env, outcome = self.environment_of(execution.session), execution.outcome
        submitted_s, sent_s = execution.submitted_s, execution.sent_s
        if execution.earlier:  # nobody knows how long it has taken
            self._add("nsm_executions_taken_up", env, outcome)
        else:
            timed, took_s = self.timed, event.at_s - submitted_s
            timed["nsm_execution_latency_seconds"][env, outcome].add(took_s)
            if sent_s is not None:
                timed["nsm_execution_wait_seconds"][(env,)].add(sent_s - submitted_s)
        if isinstance(execution.answer, RunOutcome) and execution.answer.denials:
            self._add("nsm_denials", env)
        for limit in execution.limit_events:
            self._add("nsm_limits_hit", limit.kind, limit.enforced_by, by=limit.times)
            self._events.publish(
                "limit_hit",
                session=event.session,
                subject=execution,
                limit=limit.kind,
                limit_value=limit.limit,
                enforced_by=limit.enforced_by,
                what=limit.what,
            )

    def _session_ready(self, event: SupervisorEvent, session: Session) -> None:
        began_s = self._starting.pop(event.session, None)
        if began_s is not None:
            kind = "cold" if session.policy is None else session.policy.kind
            env, took_s = self.environment_of(session), event.at_s - began_s
            self._took("nsm_session_start_seconds", took_s, env, kind)

    def _session_ended(self, event: SupervisorEvent, session: Session) -> None:
        env = self.environment_of(session)
        lost = bool(event.facts.get("lost"))
        if self._starting.pop(event.session, None) is not None and lost:
            self._add("nsm_session_start_failures", env)
        if session.tenancy is not None:
            self._add("nsm_sessions_ended", env, "lost" if lost else "ended")
        if session.jobs:
            self._add("nsm_jobs_ended", env, "lost", by=len(session.jobs))
