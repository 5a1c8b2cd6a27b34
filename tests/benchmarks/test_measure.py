"""The arithmetic behind `make bench`; durations themselves are never tested."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Generator
    from types import ModuleType

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"


@pytest.fixture(scope="module")
def measure() -> Generator[ModuleType]:
    spec = importlib.util.spec_from_file_location("measure_under_test", BENCHMARKS / "measure.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up by name
    try:
        spec.loader.exec_module(module)
        yield module
    finally:
        del sys.modules[spec.name]


def test_ratio_is_the_median_of_the_pairs(measure: ModuleType) -> None:
    pairs = ((1.0, 10.0), (2.0, 10.0), (9.0, 10.0))
    row = measure.Comparison(name="a", peer="b", pairs=pairs, unit="ms")
    assert row.ratios == [0.1, 0.2, 0.9]
    assert row.ratio == 0.2
    assert row.verdict == "reported"


def test_times_faster_is_the_other_way_round(measure: ModuleType) -> None:
    row = measure.Comparison(name="a", peer="b", pairs=((1.0, 10.0),), unit="ms", faster=True)
    assert row.ratio == 10.0


@pytest.mark.parametrize(
    ("bound", "value", "verdict"),
    [("≤", 0.5, "met"), ("≤", 0.4, "MISSED"), ("≥", 0.5, "met"), ("≥", 0.6, "MISSED")],
)
def test_verdict(measure: ModuleType, bound: str, value: float, verdict: str) -> None:
    target = measure.Target(bound=bound, value=value)
    row = measure.Comparison(name="a", peer="b", pairs=((1.0, 2.0),), unit="ms", target=target)
    assert row.verdict == verdict


def test_alternates_and_throws_the_first_round_away(measure: ModuleType) -> None:
    calls: list[str] = []

    def side(name: str, values: list[float]) -> float:
        calls.append(name)
        return values.pop(0)

    ours, peer = [9.0, 1.0, 2.0], [9.0, 3.0, 4.0]
    pairs = measure.alternate(lambda: side("a", ours), lambda: side("b", peer), rounds=2)
    assert pairs == ((1.0, 3.0), (2.0, 4.0))
    assert calls == ["a", "b", "b", "a", "a", "b"]


def test_page_has_no_machine_and_no_duration() -> None:
    page = (BENCHMARKS.parent / "docs/benchmarks.md").read_text()
    assert " ms" not in page
    assert " MB" not in page
