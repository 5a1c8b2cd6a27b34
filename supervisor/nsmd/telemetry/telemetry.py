"""The latest events and all counts, and figures that are read when somebody asks.

All readers of events share one ring, and each remembers its position. So a slow one delays nobody
and takes no memory: it only misses events that the ring has dropped meanwhile, and learns their
number.
"""

from __future__ import annotations

import platform
from collections import defaultdict, deque
from collections.abc import Callable, Collection, Mapping, Sequence
from itertools import islice
from time import perf_counter, time
from typing import Any, cast

import trio

from nsm._version import __version__
from nsm.dataclass import dataclass, field
from nsm.wire.tuples import NamedTuple
from nsmd.agent_link.frames import JobFacts
from nsmd.bridge.calls import ProgramCall
from nsmd.host.nvml import GpuUse, uses_below
from nsmd.manager.jobs import JobStarted
from nsmd.manager.run_service import RunService
from nsmd.model.events import EventKind, SupervisorEvent
from nsmd.model.lifecycle import Shutdown
from nsmd.model.values import ClientIdentity, has_nvidia
from nsmd.ports.port_manager import PortTraffic
from nsmd.sessions.execution import Execution
from nsmd.sessions.session import Session
from nsmd.telemetry.counts import FAMILIES, Counts, Histogram, Labels, Readings, Value, together

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


SHELL = "project"
"""Name of all environments that are projects' own shells."""

PAUSE_S = 0.1
"""Time between two looks."""

PASSES = 4
"""Passes in a look: a request is often handled in a later pass than the one that reads it."""

_ZERO: Mapping[Labels, Value] = {(): 0}


class LoopLag(trio.abc.Instrument):
    """Measurement of how long the event loop keeps waiting events from being handled.

    It looks at a few passes at a time, when something happens and the last look was a while ago.
    Looking at each pass would cost a hundredth of a call, and a task that wakes up to see how late
    it is would keep an idle supervisor awake.

    Attributes:
        busy: durations of passes, each from the moment when the loop woke up, or the look began, to
            its next check for events.
        due_s: earliest time of the next look, on trio's clock.
    """

    def __init__(self) -> None:
        self.busy = Histogram()
        self.due_s = 0.0
        self._woke_s = 0.0
        self._left = 0

    def __repr__(self) -> str:
        return f"<LoopLag {self.busy!r}>"

    def sample(self, now_s: float) -> None:
        """Begin a sample of a few passes, in a task of the loop, at that time on trio's clock."""
        self.due_s = now_s + PAUSE_S
        if not self._left:
            trio.lowlevel.add_instrument(self)
            self._woke_s = perf_counter()
        self._left = PASSES

    def after_io_wait(self, timeout: float) -> None:  # noqa: ARG002 (trio's)
        """The loop has got its events."""
        self._woke_s = perf_counter()

    def before_io_wait(self, timeout: float) -> None:  # noqa: ARG002 (trio's)
        """The loop has handled its events."""
        self.busy.add(perf_counter() - self._woke_s)
        self._left -= 1
        if not self._left:
            trio.lowlevel.remove_instrument(self)


@dataclass(slots=True)
class Traffic:
    """Bytes of one protocol, from and to clients."""

    received: int = 0
    sent: int = 0


@dataclass(slots=True, kw_only=True)
class Surroundings:
    """Sources of figures that are read only when somebody asks. `unaudited` returns why bridge
    calls cannot be recorded, `unkept` why sessions would not outlive this supervisor; else they
    return an empty text. The start is on trio's clock.
    """

    connections: Callable[[], int] = lambda: 0
    max_connections: int = 0
    templates: Callable[[], Collection[int]] = tuple
    audit_lost: Callable[[], int] = lambda: 0
    programs_running: Callable[[], int] = lambda: 0
    ports: Callable[[], PortTraffic] = PortTraffic
    unaudited: Callable[[], str] = lambda: ""
    unkept: Callable[[], str] = lambda: ""
    ending: Shutdown = field(default_factory=Shutdown)
    started_s: float = field(default_factory=trio.current_time)


class Telemetry:
    """All counts and figures. Made within the event loop."""

    def __init__(self, run_service: RunService, surroundings: Surroundings | None = None) -> None:
        self._run_service = run_service
        self._around = surroundings or Surroundings()
        self.recent = Ring()
        self.lag = LoopLag()
        self.traffic = {"control": Traffic(), "mcp": Traffic(), "http": Traffic()}
        self._writing = trio.CapacityLimiter(1)
        run_service.events.subscribe(self._add)
        self.counts = Counts(run_service.events, self._for_everyone)

    def __repr__(self) -> str:
        return f"<Telemetry {self.recent.count} events>"

    @property
    def uptime_s(self) -> float:
        """Seconds since the supervisor started."""
        return trio.current_time() - self._around.started_s

    def _add(self, event: SupervisorEvent) -> None:
        if event.at_s >= self.lag.due_s:
            self.lag.sample(event.at_s)
        self.recent.add(event)

    def _for_everyone(self, name: str) -> bool:
        # A client without an entry of its own sees the environments for everyone.
        catalog = self._run_service.catalog
        return name == SHELL or name in catalog.view(ClientIdentity(name="", scope="")).names

    def read(self) -> dict[str, Mapping[Labels, Value]]:
        """Read every family with its present values; those of the process are 0. Takes about a
        microsecond per session.
        """
        values = {
            **self.counts.read(),
            **self._sessions(),
            **self._pool(),
            **self._clients(),
            **self._network(),
            **self._ports(),
            **self._itself(),
        }
        return {
            name: values.get(name, {} if family.labels else _ZERO)
            for name, family in FAMILIES.items()
        }

    async def text(self, accept: str = "") -> tuple[bytes, str]:
        """Format all metrics for Prometheus, in the format that an Accept header selects. Returns
        the text, and its content type.
        """
        # One at a time, since they compete with the event loop for Python's lock.
        templates, readings = self._around.templates(), {**self.read(), **await self._gpus()}
        return await trio.to_thread.run_sync(
            _text_of, readings, templates, accept, limiter=self._writing
        )

    def _sessions(self) -> Readings:
        states: defaultdict[Labels, int] = defaultdict(int)
        jobs: defaultdict[Labels, int] = defaultdict(int)
        for session in self._run_service.live_sessions():
            env = self.counts.environment_of(session)
            states[env, session.state.value] += 1
            if session.jobs:
                jobs[(env,)] += len(session.jobs)
        return {"nsm_sessions": states, "nsm_jobs": jobs}

    async def _gpus(self) -> Readings:
        """Read the GPUs, if a session has one."""
        sessions = self._run_service.live_sessions()
        sessions = [s for s in sessions if has_nvidia(s.spec.environment.shown_devices)]
        if not sessions:
            return {}
        reading = await self._run_service.lister.gpus.read()
        if reading.problem:
            return {"nsm_gpu_unreadable": {(): 1}}
        uses = await trio.to_thread.run_sync(uses_below, reading, [s.pid for s in sessions])
        memory: defaultdict[Labels, float] = defaultdict(int)
        shares: defaultdict[Labels, float] = defaultdict(float)
        for session in sessions:
            env, use = self.counts.environment_of(session), uses.get(session.pid, GpuUse())
            memory[(env,)] += use.memory_bytes or 0
            shares[(env,)] += (use.percent or 0) / 100
        known = [gpu for gpu in reading.gpus if not gpu.problem]
        return {
            "nsm_session_gpu_memory_bytes": memory,
            "nsm_session_gpu_use_ratio": shares,
            "nsm_gpu_memory_used_bytes": {(str(gpu.number),): gpu.used_bytes or 0 for gpu in known},
            "nsm_gpu_memory_size_bytes": {
                (str(gpu.number),): gpu.memory_bytes or 0 for gpu in known
            },
            "nsm_gpu_unreadable": {(): int(len(known) < len(reading.gpus))},
        }

    def _pool(self) -> Readings:
        pool = self._run_service.session_manager.pool
        spares: defaultdict[Labels, int] = defaultdict(int)
        wanted: defaultdict[Labels, int] = defaultdict(int)
        for kind in pool.kinds:
            env = self.counts.label(kind.spec.environment.name)
            spares[env, "ready"] += len(kind.ready)
            spares[env, "starting"] += len(kind.starting)
            wanted[(env,)] += kind.plan.wanted
        budget = pool.budget_bytes
        return {
            "nsm_pool_spares": spares,
            "nsm_pool_wanted": wanted,
            "nsm_pool_budget_bytes": {} if budget is None else {(): budget},
            "nsm_templates": {(): len(self._around.templates())},
        }

    def _clients(self) -> Readings:
        moved: dict[Labels, Value] = {}
        for name, traffic in self.traffic.items():
            moved[name, "in"], moved[name, "out"] = traffic.received, traffic.sent
        return {
            **{
                metric: {(name,): self.counts.counted[metric][(name,)] for name in self.traffic}
                for metric in ("nsm_clients", "nsm_clients_connected")
            },
            "nsm_connections": {(): self._around.connections()},
            "nsm_connections_limit": {(): self._around.max_connections},
            "nsm_client_bytes": moved,
        }

    def _network(self) -> Readings:
        gateway = self._run_service.session_manager.gateway
        counters, secrets = gateway.counters, self._run_service.session_manager.secrets
        uses, refusals = secrets.counts() if secrets is not None else (0, 0)
        requests = {**counters.verdicts, "secret": counters.verdicts["secret"] + refusals}
        return {
            "nsm_proxy_requests": {(name,): count for name, count in requests.items()},
            "nsm_proxy_bytes": {("in",): counters.received_bytes, ("out",): counters.sent_bytes},
            "nsm_proxy_connections": {(): gateway.room.borrowed_tokens},
            "nsm_secret_uses": {(): uses},
        }

    def _ports(self) -> Readings:
        traffic = self._around.ports()
        return {
            "nsm_ports": {(): traffic.ports},
            "nsm_ports_not_open": {(): traffic.unopened},
            "nsm_port_connections": {(): traffic.connections},
            "nsm_port_connections_accepted": {(): traffic.accepted},
            "nsm_port_connections_failed": {(): traffic.failed},
            "nsm_port_bytes": {("in",): traffic.sent_bytes, ("out",): traffic.received_bytes},
        }

    def _itself(self) -> Readings:
        return {
            "nsm_bridge_calls_running": {(): self._around.programs_running()},
            "nsm_bridge_audit_failing": {(): int(bool(self._around.unaudited()))},
            "nsm_build_info": {(__version__, platform.python_version()): 1},
            "nsm_uptime_seconds": {(): self.uptime_s},
            "nsm_sessions_not_kept": {(): int(bool(self._around.unkept()))},
            "nsm_audit_lines_lost": {(): self._around.audit_lost()},
            "nsm_draining": {(): int(bool(self._around.ending.draining))},
            "nsm_event_loop_busy_seconds": {(): self.lag.busy.copy()},
            "nsm_events": {(): self.recent.count},
        }


def _text_of(readings: Readings, templates: Collection[int], accept: str) -> tuple[bytes, str]:
    # The first time takes some 100 ms, to import Prometheus' library.
    from nsmd.telemetry.exposition import process_readings, text_of  # noqa: PLC0415

    return text_of({**readings, **process_readings(templates)}, accept)


def report(telemetry: Telemetry) -> dict[str, Any]:
    """Make the answer to `stats`: durations in seconds, since the supervisor started."""
    counts = telemetry.counts
    pool = {"hits": 0, "misses": 0}
    for (_, result), count in counts.counted["nsm_pool_takes"].items():
        pool["hits" if result == "hit" else "misses"] += count
    environments = sorted({env for env, _ in counts.timed["nsm_execution_latency_seconds"]})
    return {
        "uptime_s": telemetry.uptime_s,
        "environments": [_environment(counts, env) for env in environments],
        "starts": [
            {"env": env, "kind": kind, "times": _times(histogram)}
            for (env, kind), histogram in sorted(counts.timed["nsm_session_start_seconds"].items())
        ],
        "pool": pool,
        "event_loop": _times(telemetry.lag.busy),
    }


def _environment(counts: Counts, env: str) -> dict[str, Any]:
    latency = counts.timed["nsm_execution_latency_seconds"]
    mine = {outcome: each for (of, outcome), each in latency.items() if of == env}
    return {
        "env": env,
        "outcomes": {outcome: histogram.count for outcome, histogram in sorted(mine.items())},
        "latency": _times(together(mine.values())),
        "wait": _times(counts.timed["nsm_execution_wait_seconds"].get((env,), Histogram())),
    }


def _times(histogram: Histogram) -> dict[str, Any]:
    count = histogram.count
    return {
        "total": count,
        "mean_s": histogram.sum_s / count if count else None,
        "p50_s": histogram.quantile(0.5),
        "p90_s": histogram.quantile(0.9),
        "p99_s": histogram.quantile(0.99),
        "max_s": histogram.max_s if count else None,
    }
