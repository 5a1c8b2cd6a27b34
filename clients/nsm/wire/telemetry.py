"""Figures of the supervisor, its events, and the sessions that it keeps ready."""

from collections.abc import Mapping
from typing import Annotated, Any

from nsm.wire.decode import at_least
from nsm.wire.messages import read
from nsm.wire.operation import operation
from nsm.wire.tuples import NamedTuple


class PoolKind(NamedTuple):
    """Sessions of one environment that see one project. Times in seconds.

    Attributes:
        project: host directory that they see, or None.
        ready: can be taken.
        starting: will be ready soon.
        wanted: how many there should be; `why` says why, for people.
        hits: sessions that were taken ready.
        misses: those whose takers had to wait for a start.
        refill_p50_s, refill_p95_s: duration of the last starts, median and 95th percentile; None
            before the first.
        calls_per_s: sessions taken, averaged over the last minute or so.
        idle_s: since one was taken, or somebody came who is likely to take one.
        memory_bytes: memory of one session; None before it was measured.
        failures: starts that failed, one after the other.
    """

    env: str
    project: str | None
    ready: int
    starting: int
    wanted: int
    why: str
    hits: int
    misses: int
    refill_p50_s: float | None
    refill_p95_s: float | None
    calls_per_s: float
    idle_s: float
    memory_bytes: int | None
    failures: int


class PoolTotals(NamedTuple):
    """All kinds together; hits and misses since the supervisor started."""

    ready: int
    starting: int
    wanted: int
    hits: int
    misses: int


class PoolMemory(NamedTuple):
    """Memory for spares, bytes; None where unknown.

    Attributes:
        spares_bytes: memory of spares, as far as measured.
        budget_bytes: memory that they may use now.
        available_bytes: memory that programs can get on this host, or in its control group.
        pressure_percent: share of the last 10 s in which some program waited for memory.
    """

    spares_bytes: int
    budget_bytes: int | None
    available_bytes: int | None
    pressure_percent: float | None


class PoolReport(NamedTuple):
    """Sessions that are kept ready; the kind that was used last comes first."""

    kinds: tuple[PoolKind, ...]
    totals: PoolTotals
    memory: PoolMemory


@operation("read")
def pool() -> PoolReport:
    """Describe the sessions that are kept ready."""
    ...


class Times(NamedTuple):
    """Times that something took, seconds; None before the first.

    Attributes:
        total: how often.
        p50_s, p90_s, p99_s: percentiles, at most 25 % off.
        max_s: the longest, exactly.
    """

    total: int
    mean_s: float | None
    p50_s: float | None
    p90_s: float | None
    p99_s: float | None
    max_s: float | None


class EnvironmentStats(NamedTuple):
    """Executions in one environment since the supervisor started.

    Attributes:
        env: its name; ``(own)`` for those of single clients.
        outcomes: how many ended how: ``ok``, ``error``, ``timeout``, ``interrupted``, ``lost``.
        latency: from request to answer.
        wait: the part of it until the code was sent to its session.
    """

    env: str
    outcomes: Mapping[str, int]
    latency: Times
    wait: Times


class StartStats(NamedTuple):
    """Starts of sessions, spares included.

    Attributes:
        kind: ``forked``, ``cold``, ``artifact-forked`` or ``artifact``.
    """

    env: str
    kind: str
    times: Times


class Stats(NamedTuple):
    """Times that things took since the supervisor started.

    Attributes:
        pool_hits, pool_misses: sessions that were ready when asked for, and others.
        event_loop: for how long at a time whatever happened had to wait.
    """

    uptime_s: float
    environments: tuple[EnvironmentStats, ...]
    starts: tuple[StartStats, ...]
    pool_hits: Annotated[int, "pool.hits"]
    pool_misses: Annotated[int, "pool.misses"]
    event_loop: Times


class Occurrence(NamedTuple):
    """One thing that happened in the supervisor.

    Attributes:
        number: 1, 2, 3, ... since it started.
        at: when, Unix time.
        session: id; None for none.
        facts: plain values.
    """

    number: int
    at: float
    kind: str
    session: str | None
    facts: Mapping[str, Any]


def missed_from_wire(wire: Mapping[str, Any]) -> int:
    """Count the events that were dropped before the next one, from what came with `missed`."""
    return read(int, wire, "count")


def metrics_text(wire: Mapping[str, Any]) -> str:
    """The text in the answer to `metrics`."""
    return read(str, wire, "text")


@operation("read")
def metrics(accept: str = "") -> dict[str, Any]:
    """Count everything, for Prometheus: `{text, content_type}`. `accept` is as in HTTP."""
    ...


@operation("read")
def stats() -> Stats:
    """Tell how long things take."""
    ...


@operation("read")
def http() -> dict[str, Any]:
    """Describe MCP over HTTP: `{enabled, listen, url, token, problem, connections,
    max_connections, displaced, refused: {why: count}}`.
    """
    ...


@operation("manage", key="number", recorded=None)
def events(
    *,
    last: Annotated[int | None, at_least(0)] = None,
    follow: bool = False,
    session: str | None = None,
) -> int:
    """Tell what happens: events `event` (`Occurrence`), and `missed {count}` where some were
    dropped; then the number of the last one. The last 4096 are kept.
    """
    ...
