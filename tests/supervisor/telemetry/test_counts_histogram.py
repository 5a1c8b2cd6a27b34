"""Buckets, and what is made of them."""

from __future__ import annotations

import math
import random
from itertools import pairwise

import pytest

from nsmd.telemetry.counts import BOUNDS, SHOWN, Histogram, together


def filled(*seconds: float) -> Histogram:
    histogram = Histogram()
    for each in seconds:
        histogram.add(each)
    return histogram


def test_bounds_are_ten_to_a_decade_and_all_of_them_are_floats_as_written() -> None:
    assert list(BOUNDS) == sorted(set(BOUNDS))
    assert all(above / below < 1.3 for below, above in pairwise(BOUNDS))
    assert [repr(BOUNDS[index]) for index in SHOWN][:6] == (
        ["0.0001", "0.00025", "0.0005", "0.001", "0.0025", "0.005"]
    )


def test_a_bound_belongs_to_what_is_below_it() -> None:
    """`le` means less or equal."""
    for bound, count in filled(0.1, 0.25).shown():
        assert count == (bound >= 0.1) + (bound >= 0.25), bound


def test_what_is_shown_grows_and_leaves_out_nothing_but_the_longest() -> None:
    histogram = filled(0, -1, 1e-9, 0.3, 4999, 1e9)
    shown = list(histogram.shown())
    assert [count for _, count in shown] == sorted(count for _, count in shown)
    assert (shown[-1], histogram.count, histogram.max_s) == ((5000.0, 5), 6, 1e9)
    assert histogram.sum_s == pytest.approx(1e9 + 4999.3)


@pytest.mark.parametrize("spread", [0.1, 1.0, 3.0])
def test_percentiles_are_a_quarter_off_at_most(spread: float) -> None:
    chance = random.Random(spread)
    durations = sorted(chance.lognormvariate(math.log(0.05), spread) for _ in range(3000))
    histogram = filled(*durations)
    for share in (0.01, 0.5, 0.9, 0.99, 1):
        exact = durations[math.ceil(share * len(durations)) - 1]
        told = histogram.quantile(share)
        assert told is not None
        assert exact / 1.27 <= told <= exact * 1.27, share
    assert histogram.quantile(1) == durations[-1]


def test_nothing_has_no_percentiles() -> None:
    assert Histogram().quantile(0.5) is None


def test_one_duration_is_all_its_percentiles_within_its_bucket() -> None:
    told = filled(0.3).quantile(0.5)
    assert told is not None
    assert 0.25 <= told <= 0.3


def test_several_together() -> None:
    one, other = filled(0.1, 0.2), filled(3.0)
    whole = together([one, other])
    assert (whole.count, whole.max_s) == (3, 3.0)
    assert whole.sum_s == pytest.approx(3.3)
    assert one.count == 2
    kept = one.copy()
    one.add(1)
    assert (kept.count, kept.max_s) == (2, 0.2)
