"""The arithmetic behind `make bench`; durations themselves are never tested."""

from __future__ import annotations

from typing import Literal

import pytest

import measure


def comparison(*pairs: tuple[float, float], **fields: object) -> measure.Comparison:
    row: dict[str, object] = {"name": "a", "peer": "b", "unit": "ms", "pairs": pairs}
    return measure.Comparison(**(row | fields))  # type: ignore[arg-type]


def test_ratio_is_the_median_of_the_pairs() -> None:
    row = comparison((1.0, 10.0), (2.0, 10.0), (9.0, 10.0))
    assert row.ratios == [0.1, 0.2, 0.9]
    assert row.ratio == 0.2
    assert row.verdict == "reported"


def test_times_faster_is_the_other_way_round() -> None:
    assert comparison((1.0, 10.0), more=True).ratio == 10.0


def test_more_a_second_is_better_as_it_is() -> None:
    assert comparison((10.0, 2.0), more=True, unit="a second").ratio == 5.0


@pytest.mark.parametrize(
    ("bound", "value", "verdict"),
    [
        ("≤", 0.7, "met"),
        ("≤", 0.55, "met, near"),
        ("≤", 0.5, "met, near"),
        ("≤", 0.4, "MISSED"),
        ("≥", 0.4, "met"),
        ("≥", 0.45, "met, near"),
        ("≥", 0.6, "MISSED"),
    ],
)
def test_verdict(bound: Literal["≤", "≥"], value: float, verdict: str) -> None:
    target = measure.Target(bound=bound, value=value)
    assert comparison((1.0, 2.0), target=target).verdict == verdict


@pytest.mark.parametrize(
    ("value", "least", "verdict"),
    [(80.0, False, "met"), (120.0, False, "MISSED"), (120.0, True, "met"), (80.0, True, "MISSED")],
)
def test_a_budget_takes_the_place_of_a_peer(value: float, least: bool, verdict: str) -> None:
    row = measure.against_budget("a", [value], 100.0, "a second", least=least)
    assert (row.peer, row.medians, row.verdict) == ("its budget", (value, 100.0), verdict)


@pytest.mark.parametrize(("percent", "value"), [(0, 1.0), (50, 2.0), (75, 3.0), (76, 4.0)])
def test_a_percentile_is_a_sample_that_so_many_do_not_exceed(percent: int, value: float) -> None:
    assert measure.percentile((4.0, 1.0, 3.0, 2.0), percent) == value


def test_without_a_warm_up_every_round_counts() -> None:
    values = [1, 2]
    assert measure.alternate_all([lambda: values.pop(0)], rounds=2, warm_up=False) == [(1, 2)]


def test_a_floor_is_neither_met_nor_missed() -> None:
    assert comparison((1.0, 2.0), floor=True).verdict == "floor"


def test_alternates_and_throws_the_first_round_away() -> None:
    calls: list[str] = []

    def side(name: str, values: list[float]) -> float:
        calls.append(name)
        return values.pop(0)

    ours, peer = [9.0, 1.0, 2.0], [9.0, 3.0, 4.0]
    pairs = measure.alternate(lambda: side("a", ours), lambda: side("b", peer), rounds=2)
    assert pairs == ((1.0, 3.0), (2.0, 4.0))
    assert calls == ["a", "b", "b", "a", "a", "b"]


def test_a_measurement_is_the_median_of_its_calls_and_all_are_kept() -> None:
    times = iter([1.0, 9.0, 2.0, 4.0, 4.0, 4.0])
    timer = measure.Timer(once=lambda: next(times), calls=3)
    assert [timer(), timer()] == [2.0, 4.0]
    assert timer.distribution("a").samples == (1.0, 9.0, 2.0, 4.0, 4.0, 4.0)
