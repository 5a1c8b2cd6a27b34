"""Rates, bursts and times of refills, on a clock of the test."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nsmd.pool.pool import BURST_HALF_LIFE_S, MAX_BURST, RATE_S, Demand, Refills


def test_a_steady_rate_is_found() -> None:
    demand = Demand()
    for n in range(2000):
        demand.add(n * 0.25, lead_s=0.05)
    assert demand.rate(2000 * 0.25) == pytest.approx(4, rel=0.02)
    assert demand.burst(2000 * 0.25) == pytest.approx(1, rel=0.01)


def test_both_fade_with_time_alone() -> None:
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


def test_nothing_known_is_nothing_wanted() -> None:
    assert Demand().rate(1e9) == Demand().burst(1e9) == 0
    assert Refills().quantile(0.5) is None


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
