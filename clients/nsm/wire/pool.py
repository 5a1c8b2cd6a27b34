"""The answer to `pool`: sessions that are kept ready. Few programs ask."""

from typing import NamedTuple

from nsm.wire.operation import operation


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
def pool() -> PoolReport: ...
