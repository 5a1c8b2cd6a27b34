"""All that is counted, and what is looked up when somebody asks."""

from __future__ import annotations

import platform
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TypeVar

import trio

from nsm._version import __version__
from nsmd.manager.run_service import RunService
from nsmd.model.events import Happening
from nsmd.model.shutdown import Shutdown
from nsmd.model.values import Client
from nsmd.telemetry import families as f
from nsmd.telemetry.counts import Counts
from nsmd.telemetry.families import Labels, Reading, Value
from nsmd.telemetry.histogram import Histogram
from nsmd.telemetry.lag import LoopLag
from nsmd.telemetry.ring import Ring

SHELL = "project"
"""The name of all environments that are projects' own shells."""

V = TypeVar("V", int, Histogram)


@dataclass(slots=True)
class Traffic:
    """Bytes of one protocol, from and to clients."""

    received: int = 0
    sent: int = 0


@dataclass(slots=True, kw_only=True)
class Surroundings:
    """Sources of figures that are read only when somebody asks.

    Attributes:
        connections: how many there are.
        max_connections: how many there may be.
        templates: how many there are.
        audit_lost: lines of the audit that could not be written.
        programs_running: calls of the bridge that are under way.
        unaudited: why calls of the bridge cannot be written down; empty where they can.
        unkept: why sessions would not outlive this supervisor; empty where they would.
        ending: whether new sessions may come.
        started_s: on trio's clock.
    """

    connections: Callable[[], int] = lambda: 0
    max_connections: int = 0
    templates: Callable[[], int] = lambda: 0
    audit_lost: Callable[[], int] = lambda: 0
    programs_running: Callable[[], int] = lambda: 0
    unaudited: Callable[[], str] = lambda: ""
    unkept: Callable[[], str] = lambda: ""
    ending: Shutdown = field(default_factory=Shutdown)
    started_s: float = field(default_factory=trio.current_time)


class Telemetry:
    """All counts and figures. Made within the event loop.

    Args:
        run_service: whose events are counted.
        surroundings: see there.

    Attributes:
        counts: what has happened.
        recent: the latest of it.
        lag: of the event loop.
        traffic: by protocol, `control`, `mcp` and `http`.
    """

    def __init__(self, run_service: RunService, surroundings: Surroundings | None = None) -> None:
        self._run_service = run_service
        self._around = surroundings or Surroundings()
        self.counts = Counts(run_service.events, self._for_everyone)
        self.recent = Ring()
        self.lag = LoopLag()
        self.traffic = {"control": Traffic(), "mcp": Traffic(), "http": Traffic()}
        self._writing = trio.CapacityLimiter(1)
        run_service.events.subscribe(self._take)

    def __repr__(self) -> str:
        return f"<Telemetry {self.recent.count} events>"

    @property
    def uptime_s(self) -> float:
        """Since the supervisor started."""
        return trio.current_time() - self._around.started_s

    def _take(self, happening: Happening) -> None:
        if happening.at_s >= self.lag.due_s:
            self.lag.look(happening.at_s)
        self.recent.take(happening)
        self.counts.take(happening)

    def _for_everyone(self, name: str) -> bool:
        # A client without an entry of its own sees what there is for everyone.
        catalog = self._run_service.provider.catalog
        return name == SHELL or name in catalog.view(Client(name="", scope="")).names

    def read(self) -> list[Reading]:
        """Every family but those of the process, with the values that it has now. Takes about a
        microsecond a session."""
        return [
            *self._of_executions(),
            *self._of_sessions(),
            *self._of_the_pool(),
            *self._of_clients(),
            *self._of_the_network(),
            *self._of_programs(),
            *self._of_itself(),
        ]

    async def text(self, accept: str = "") -> tuple[bytes, str]:
        """All metrics as Prometheus reads them.

        Args:
            accept: as in a request's Accept header: which format is wanted.

        Returns:
            The text, and its content type.
        """
        # One at a time, whoever asks: they compete with the event loop for Python's lock.
        return await trio.to_thread.run_sync(_text_of, self.read(), accept, limiter=self._writing)

    def _of_executions(self) -> Iterator[Reading]:
        counts = self.counts
        yield f.EXECUTIONS, {labels: each.count for labels, each in counts.latency.items()}
        yield f.LATENCY, _copied(counts.latency)
        yield f.WAIT, _copied(_single(counts.wait))
        yield f.RUNS_TAKEN_UP, dict(counts.runs_taken_up)
        yield f.LIMITS_HIT, dict(counts.limits_hit)
        yield f.DENIALS, _single(counts.denials)

    def _of_sessions(self) -> Iterator[Reading]:
        counts = self.counts
        states: defaultdict[Labels, int] = defaultdict(int)
        for session in self._run_service.live_sessions():
            states[counts.environment_of(session), session.state.value] += 1
        yield f.SESSIONS, states
        yield f.STARTS, _copied(counts.starts)
        yield f.START_FAILURES, _single(counts.start_failures)
        yield f.ENDED, dict(counts.ended)
        yield f.TAKEN_UP, _single(counts.taken_up)

    def _of_the_pool(self) -> Iterator[Reading]:
        counts, pool = self.counts, self._run_service.session_manager.pool
        spares: defaultdict[Labels, int] = defaultdict(int)
        wanted: defaultdict[Labels, int] = defaultdict(int)
        for kind in pool.kinds:
            env = counts.label(kind.spec.environment.name)
            spares[env, "ready"] += len(kind.ready)
            spares[env, "starting"] += len(kind.starting)
            wanted[(env,)] += kind.plan.wanted
        yield f.HANDED_OUT, dict(counts.takes)
        yield f.SPARES, spares
        yield f.WANTED, wanted
        yield f.REFILLS, _copied(_single(counts.refills))
        budget = pool.budget_bytes
        yield f.POOL_BUDGET, {} if budget is None else {(): budget}
        yield f.TEMPLATES, {(): self._around.templates()}

    def _of_clients(self) -> Iterator[Reading]:
        yield f.CLIENTS, {(name,): self.counts.clients[name] for name in self.traffic}
        yield f.CONNECTED, {(name,): self.counts.connected[name] for name in self.traffic}
        yield f.CONNECTIONS, {(): self._around.connections()}
        yield f.CONNECTIONS_LIMIT, {(): self._around.max_connections}
        moved: dict[Labels, Value] = {}
        for name, traffic in self.traffic.items():
            moved[name, "in"], moved[name, "out"] = traffic.received, traffic.sent
        yield f.BYTES, moved

    def _of_the_network(self) -> Iterator[Reading]:
        gateway = self._run_service.session_manager.gateway
        counters = gateway.counters
        yield f.PROXY_REQUESTS, {(name,): count for name, count in counters.verdicts.items()}
        yield (
            f.PROXY_BYTES,
            {("in",): counters.received_bytes, ("out",): counters.sent_bytes},
        )
        yield f.PROXY_CONNECTIONS, {(): gateway.room.borrowed_tokens}

    def _of_programs(self) -> Iterator[Reading]:
        yield f.PROGRAM_CALLS, _single(self.counts.programs)
        yield f.PROGRAM_TIME, _copied(_single(self.counts.program_time))
        yield f.PROGRAMS_RUNNING, {(): self._around.programs_running()}
        yield f.PROGRAMS_UNAUDITED, {(): int(bool(self._around.unaudited()))}

    def _of_itself(self) -> Iterator[Reading]:
        happened = self.counts.happened
        yield f.INFO, {(__version__, platform.python_version()): 1}
        yield f.UPTIME, {(): self.uptime_s}
        yield f.RESTARTS, {(): self.counts.restarts}
        yield f.UNKEPT, {(): int(bool(self._around.unkept()))}
        yield f.AUDIT_LOST, {(): self._around.audit_lost()}
        yield f.DRAINING, {(): int(bool(self._around.ending.draining))}
        yield f.LAG, {(): self.lag.busy.copy()}
        yield f.RELOADS, {(): happened["configuration_reloaded"]}
        yield f.PRESSURE, {(): happened["memory_pressure"]}
        yield f.PRESSURE_ENDED, {(): self.counts.pressed_out}
        yield f.EVENTS, {(): self.recent.count}


def _text_of(readings: list[Reading], accept: str) -> tuple[bytes, str]:
    # The first time takes some 100 ms: what Prometheus' library imports.
    from nsmd.telemetry import exposition, process  # noqa: PLC0415

    return exposition.text_of([*readings, *process.readings()], accept)


def _single(values: Mapping[str, V]) -> dict[Labels, V]:
    return {(label,): value for label, value in values.items()}


def _copied(values: Mapping[Labels, Histogram]) -> dict[Labels, Histogram]:
    """As they are now: another thread makes text of them."""
    return {labels: histogram.copy() for labels, histogram in values.items()}
