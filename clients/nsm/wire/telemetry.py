"""The answers to `stats` and `metrics`, and the events of `events`. Few programs ask."""

from collections.abc import Mapping
from typing import Annotated, Any, NamedTuple

from nsm.wire.answers import read
from nsm.wire.decode import at_least
from nsm.wire.operation import operation


class Times(NamedTuple):
    """How long something took, seconds; None before the first.

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
    """How long things took since the supervisor started.

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
    """How many events were dropped before the next one, from what came with `missed`."""
    return read(int, wire, "count")


def metrics_text(wire: Mapping[str, Any]) -> str:
    """The text in the answer to `metrics`."""
    return read(str, wire, "text")


@operation("read")
def metrics(accept: str = "") -> dict[str, Any]: ...
@operation("read")
def stats() -> Stats: ...
@operation("read")
def http() -> dict[str, Any]: ...
@operation("manage", key="number", recorded=None)
def events(
    *,
    last: Annotated[int | None, at_least(0)] = None,
    follow: bool = False,
    session: str | None = None,
) -> int: ...
