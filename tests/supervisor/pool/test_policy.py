"""The pool's policy: bounds, and what more or less of something does to its plans."""

from __future__ import annotations

import dataclasses
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nsmd.model.settings import PoolSettings
from nsmd.pool.policy import (
    EXPECTED_S,
    HIGH_PERCENT,
    MOST_AT_ONCE,
    UNKNOWN_COST_BYTES,
    KindSeen,
    MemorySeen,
    Observation,
    PoolPlan,
    plan,
    refill_at,
    starts_at_once,
)
from nsmd.pool.pool import BURST_HALF_LIFE_S, MAX_BURST, RATE_S, Demand, Refills

GIB = 1 << 30
MIB = 1 << 20

seconds = st.floats(0, 10_000) | st.just(math.inf)
kinds_seen = st.builds(
    KindSeen,
    spares=st.integers(0, 20),
    rate_per_s=st.floats(0, 1000),
    burst=st.floats(0, 1000),
    refill_s=st.none() | st.floats(0.0005, 20),
    idle_s=seconds,
    expected_s=seconds,
    cost_bytes=st.none() | st.integers(0, 200 * MIB),
    failures=st.integers(0, 3000),
    failed_s=seconds,
)
memories = st.builds(
    MemorySeen,
    total_bytes=st.integers(0, 64 * GIB),
    available_bytes=st.none() | st.integers(0, 64 * GIB),
    pressure_percent=st.none() | st.floats(0, 100),
    watched=st.booleans(),
)
pools = st.builds(
    PoolSettings,
    min_spares=st.integers(0, 8),
    max_spares=st.integers(0, 40),
    memory_percent=st.floats(0.1, 100),
    keep_seconds=st.floats(1, 10_000),
)
observations = st.builds(
    Observation, settings=pools, kinds=st.lists(kinds_seen, max_size=6), memory=memories
)

USED = KindSeen(rate_per_s=0.01, burst=1.0, refill_s=0.05, idle_s=1.0, cost_bytes=10 * MIB)
PLENTY = MemorySeen(total_bytes=16 * GIB, available_bytes=8 * GIB, pressure_percent=0.0)


def wanted(made: PoolPlan) -> list[int]:
    return [kind.wanted for kind in made.kinds]


def observe(*kinds: KindSeen, memory: MemorySeen = PLENTY, **settings: float) -> Observation:
    return Observation(settings=PoolSettings(**settings), kinds=kinds, memory=memory)  # type: ignore[arg-type]


def changed(seen: Observation, index: int, **fields: float) -> Observation:
    kinds = list(seen.kinds)
    kinds[index] = dataclasses.replace(kinds[index], **fields)  # type: ignore[arg-type]
    return dataclasses.replace(seen, kinds=kinds)


@given(observations)
def test_bounds(seen: Observation) -> None:
    made = plan(seen)
    assert len(made.kinds) == len(seen.kinds)
    assert all(count >= 0 for count in wanted(made))
    assert sum(wanted(made)) <= seen.settings.max_spares
    assert made.again_s > 0
    costs = [k.cost_bytes if k.cost_bytes is not None else UNKNOWN_COST_BYTES for k in seen.kinds]
    if made.budget_bytes is not None:
        assert sum(c * n for c, n in zip(costs, wanted(made), strict=True)) <= made.budget_bytes
    for index, kind in enumerate(seen.kinds):
        missing = max(0, made.kinds[index].wanted - kind.spares)
        assert made.starts.count(index) == missing
        assert made.kinds[index].why


@given(observations)
def test_unused_kinds_go_to_zero(seen: Observation) -> None:
    keep_s = seen.settings.keep_seconds
    for kind, its in zip(seen.kinds, plan(seen).kinds, strict=True):
        if kind.idle_s >= keep_s and kind.expected_s >= min(keep_s, EXPECTED_S):
            assert its.wanted == 0


@given(observations, st.integers(0, 64 * GIB))
def test_more_memory_takes_no_spare_away(seen: Observation, more: int) -> None:
    if seen.memory.available_bytes is None:
        return
    available = seen.memory.available_bytes + more
    richer = dataclasses.replace(
        seen, memory=dataclasses.replace(seen.memory, available_bytes=available)
    )
    pairs = zip(wanted(plan(seen)), wanted(plan(richer)), strict=True)
    assert all(less <= many for less, many in pairs)


@given(observations, st.floats(0, 100), st.floats(0, 100))
def test_more_pressure_gives_no_spare(seen: Observation, one: float, other: float) -> None:
    def under(percent: float) -> list[int]:
        memory = dataclasses.replace(seen.memory, pressure_percent=percent)
        return wanted(plan(dataclasses.replace(seen, memory=memory)))

    calm, pressed = under(min(one, other)), under(max(one, other))
    assert all(less <= many for less, many in zip(pressed, calm, strict=True))
    known = seen.memory.available_bytes is not None
    if known and max(one, other) >= HIGH_PERCENT and all(k.cost_bytes != 0 for k in seen.kinds):
        assert not any(pressed)


@given(observations, st.integers(0, 5), st.floats(1, 10), st.floats(1, 10), st.floats(1, 10))
def test_more_demand_wants_no_less(
    seen: Observation, index: int, faster: float, burstier: float, slower: float
) -> None:
    """More calls, larger bursts and slower refills: each wants at least as many as before."""
    if index >= len(seen.kinds) or seen.kinds[index].refill_s is None:
        return
    kind = seen.kinds[index]
    before = wanted(plan(seen))[index]
    assert kind.refill_s is not None
    for change in (
        {"rate_per_s": kind.rate_per_s * faster},
        {"burst": kind.burst * burstier},
        {"refill_s": kind.refill_s * slower},
    ):
        assert wanted(plan(changed(seen, index, **change)))[index] >= before


@given(observations, st.integers(0, 5), st.floats(0, 1))
def test_later_use_wants_no_less(seen: Observation, index: int, part: float) -> None:
    if index >= len(seen.kinds) or math.isinf(seen.kinds[index].idle_s):
        return
    later = changed(seen, index, idle_s=seen.kinds[index].idle_s * part)
    assert wanted(plan(later))[index] >= wanted(plan(seen))[index] or seen.kinds[index].failures


@given(observations)
def test_carried_out_it_wants_nothing_more(seen: Observation) -> None:
    """A plan that was carried out is not followed by another one: the pool comes to rest."""
    if seen.memory.available_bytes is not None:
        return  # what the spares take is taken from what is available; see the test of memory
    kinds = [
        dataclasses.replace(kind, spares=count)
        for kind, count in zip(seen.kinds, wanted(plan(seen)), strict=True)
    ]
    again = plan(dataclasses.replace(seen, kinds=kinds))
    assert again.starts == ()
    assert wanted(again) == [kind.spares for kind in kinds]


@given(st.lists(kinds_seen, max_size=6), st.integers(0, GIB))
def test_spares_do_not_push_themselves_out(kinds: list[KindSeen], available: int) -> None:
    """The memory that they take is missing from the available memory, and the budget counts it."""
    kinds = [dataclasses.replace(kind, cost_bytes=MIB, failures=0) for kind in kinds]
    memory = MemorySeen(total_bytes=GIB, available_bytes=available)
    seen = Observation(settings=PoolSettings(), kinds=kinds, memory=memory)
    first = wanted(plan(seen))
    grown = sum(first) - sum(kind.spares for kind in kinds)
    left = available - grown * MIB
    if left < 0:
        return
    kinds = [dataclasses.replace(k, spares=n) for k, n in zip(kinds, first, strict=True)]
    memory = dataclasses.replace(memory, available_bytes=left)
    assert wanted(plan(Observation(settings=PoolSettings(), kinds=kinds, memory=memory))) == first


def test_a_kind_in_use_has_the_least() -> None:
    assert plan(observe(USED)).kinds[0].wanted == 2
    assert plan(observe(USED, min_spares=0)).kinds[0].wanted == 1  # a call came lately
    assert plan(observe(dataclasses.replace(USED, burst=0.4), min_spares=0)).kinds[0].wanted == 0


def test_cold_starts_want_more_than_forks_at_the_same_rate() -> None:
    cold = dataclasses.replace(USED, rate_per_s=40.0, refill_s=0.06)
    fork = dataclasses.replace(cold, refill_s=0.003)
    made = plan(observe(cold, fork))
    assert wanted(made) == [5, 2]  # 2.4 + 2 * 1.55; the least
    assert "40.0 calls a second, 60 ms" in made.kinds[0].why


def test_room_is_made_by_least_recent_use() -> None:
    old, new = (dataclasses.replace(USED, idle_s=s, burst=4.0) for s in (60.0, 1.0))
    assert wanted(plan(observe(old, new, max_spares=5))) == [2, 3]
    assert wanted(plan(observe(old, new, max_spares=1))) == [0, 1]
    assert plan(observe(old, new, max_spares=5)).starts == (1, 0, 1, 0, 1)
    assert "max_spares = 1" in plan(observe(old, new, max_spares=1)).kinds[0].why


times = st.floats(0, 1000)


@given(times, st.booleans(), st.floats(0.0005, 20), times, times, times)
def test_a_refill_waits_but_not_for_long(
    now: float, stocked: bool, lead: float, unanswered: float, answered: float, short: float
) -> None:
    at = refill_at(
        now_s=now,
        stocked=stocked,
        lead_s=lead,
        unanswered_s=unanswered,
        answered_s=answered,
        short_s=min(short, now),
    )
    assert now <= at <= now + (0.1 if stocked else 0.01)


def test_starts_at_once_are_few_unless_calls_come_faster() -> None:
    def at_once(
        *, stocked: bool, processors: int = 2, rate: float = 0.1, lead: float = 0.05
    ) -> int:
        return starts_at_once(stocked=stocked, processors=processors, rate_per_s=rate, lead_s=lead)

    assert at_once(stocked=True) == 1
    assert at_once(stocked=False) == 2
    assert at_once(stocked=True, processors=1) == 1
    assert at_once(stocked=True, rate=5.0, lead=0.5) == 3  # a machine that is busy with more
    assert at_once(stocked=False, processors=64, rate=1e9, lead=20.0) == MOST_AT_ONCE


# Rates, bursts and times of refills, on a clock of the test.


def test_rates_and_bursts_fade_with_time() -> None:
    demand = Demand()
    for _ in range(8):
        demand.add(100.0, lead_s=0.05)
    assert demand.burst(100.0) == 8
    assert demand.burst(100.0 + BURST_HALF_LIFE_S) == pytest.approx(4)
    assert demand.rate(100.0) == pytest.approx(8 / RATE_S)
    assert demand.rate(100.0 + 100 * RATE_S) < 1e-9


def test_calls_further_apart_than_a_refill_are_no_burst() -> None:
    demand = Demand()
    for n in range(10):
        demand.add(n * 0.1, lead_s=0.25)
    assert demand.burst(0.9) == pytest.approx(3, rel=0.01)


@given(st.lists(st.floats(0, 100), min_size=1, max_size=50))
def test_a_burst_is_at_most_the_calls_there_were(gaps: list[float]) -> None:
    demand, now = Demand(), 0.0
    for gap in gaps:
        now += gap
        demand.add(now, lead_s=1.0)
        assert 0 < demand.rate(now) <= len(gaps) / RATE_S
        assert 1 <= demand.burst(now) <= len(gaps)


def test_memory_is_bounded() -> None:
    demand = Demand()
    for _ in range(3 * MAX_BURST):
        demand.add(0.0, lead_s=1.0)
    assert demand.burst(0.0) == MAX_BURST


def test_quantiles_of_the_last_refills() -> None:
    refills = Refills()
    for n in range(100):
        refills.add(float(n))
    assert len(refills) == 32
    assert refills.quantile(0.5) == refills.usual == 83
    assert refills.quantile(0.95) == 98
    assert refills.quantile(1.0) == 99
