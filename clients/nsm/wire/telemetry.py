"""The answers to `stats` and `metrics`, and the events of `events`. Few programs ask."""

from collections.abc import Mapping
from typing import Any, NamedTuple, Self

from nsm.wire.fields import Fields, rows_of


class Times(NamedTuple):
    """How long something took, seconds; None before the first.

    Attributes:
        total: how often.
        p50_s, p90_s, p99_s: what this part of 100 did not exceed, 25 % off at most.
        max_s: the longest, exactly.
    """

    total: int
    mean_s: float | None
    p50_s: float | None
    p90_s: float | None
    p99_s: float | None
    max_s: float | None

    @classmethod
    def from_wire(cls, wire: Mapping[str, Any]) -> Self:
        """Check one of them."""
        times = Fields(wire, "durations")
        seconds = (times.optional(name, times.number) for name in cls._fields[1:])
        return cls(times.integer("total"), *seconds)


class EnvironmentStats(NamedTuple):
    """Executions in one environment since the supervisor started.

    Attributes:
        env: its name; ``(own)`` for those of single clients.
        outcomes: how many ended how: ``ok``, ``error``, ``timeout``, ``interrupted``, ``lost``.
        latency: from request to answer.
        wait: of that, until the code was sent to its session.
    """

    env: str
    outcomes: Mapping[str, int]
    latency: Times
    wait: Times

    @classmethod
    def from_wire(cls, wire: Mapping[str, Any]) -> Self:
        """Check one environment in the answer to `stats`."""
        of = Fields(wire, "an environment's figures")
        outcomes = of.map("outcomes")
        counted = Fields(outcomes, "outcomes")
        return cls(
            env=of.text("env"),
            outcomes={name: counted.integer(name) for name in outcomes},
            latency=Times.from_wire(of.map("latency")),
            wait=Times.from_wire(of.map("wait")),
        )


class StartStats(NamedTuple):
    """Starts of sessions, spares included.

    Attributes:
        kind: ``forked``, ``cold``, ``artifact-forked`` or ``artifact``.
    """

    env: str
    kind: str
    times: Times

    @classmethod
    def from_wire(cls, wire: Mapping[str, Any]) -> Self:
        """Check one kind of starts in the answer to `stats`."""
        start = Fields(wire, "starts of sessions")
        return cls(start.text("env"), start.text("kind"), Times.from_wire(start.map("times")))


class Stats(NamedTuple):
    """How long things took since the supervisor started.

    Attributes:
        pool_hits, pool_misses: sessions that were ready when asked for, and others.
        event_loop: for how long at a time whatever happened had to wait.
    """

    uptime_s: float
    environments: tuple[EnvironmentStats, ...]
    starts: tuple[StartStats, ...]
    pool_hits: int
    pool_misses: int
    event_loop: Times

    @classmethod
    def from_wire(cls, wire: Mapping[str, Any]) -> Self:
        """Check the answer to `stats`."""
        stats = Fields(wire, "figures")
        pool = Fields(stats.map("pool"), "the pool's figures")
        return cls(
            uptime_s=stats.number("uptime_s"),
            environments=tuple(
                EnvironmentStats.from_wire(row) for row in rows_of(wire, "environments")
            ),
            starts=tuple(StartStats.from_wire(row) for row in rows_of(wire, "starts")),
            pool_hits=pool.integer("hits"),
            pool_misses=pool.integer("misses"),
            event_loop=Times.from_wire(stats.map("event_loop")),
        )


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

    @classmethod
    def from_wire(cls, wire: Mapping[str, Any]) -> Self:
        """Check what came with an `event`."""
        told = Fields(wire, "an event")
        return cls(
            number=told.integer("number"),
            at=told.number("at"),
            kind=told.text("kind"),
            session=told.optional("session", told.text),
            facts=told.map("facts"),
        )


def missed_from_wire(wire: Mapping[str, Any]) -> int:
    """How many events were dropped before the next one, from what came with `missed`."""
    return Fields(wire, "a gap").integer("count")


def metrics_text(wire: Mapping[str, Any]) -> str:
    """The text in the answer to `metrics`."""
    return Fields(wire, "metrics").text("text")
