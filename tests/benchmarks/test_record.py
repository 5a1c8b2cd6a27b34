"""Keeping a run's numbers, and comparing several runs."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

import record
from measure import Comparison, Curve, Distribution, Finding, LeftOut, Machine, Target

if TYPE_CHECKING:
    from pathlib import Path

FINDINGS: list[Finding] = [
    Comparison(
        name="a",
        peer="b",
        pairs=((1.0, 2.0), (1.5, 2.0)),
        unit="a second",
        target=Target(bound="≥", value=5),
        more=True,
    ),
    Comparison(name="c", peer="b", pairs=((1.0, 2.0),), unit="MB", floor=True),
    Distribution(name="d", samples=(1.0, 2.5), plotted=False),
    Curve(plot="memory", name="e", points=((1, 0.5), (10, 0.75))),
    LeftOut(what="f", why="it is not here"),
    Machine(
        cores=2,
        memory_gb=8.0,
        processor="p",
        kernel="6.1",
        python="3.11.2",
        user="an ordinary user",
    ),
]


def test_what_is_kept_comes_back_as_it_was() -> None:
    assert record.from_json(record.to_json(FINDINGS)) == FINDINGS


@pytest.mark.parametrize(
    "text",
    ["", "[]", "{}", '{"version": 99, "findings": []}', '{"version": 2, "findings": [{}]}'],
)
def test_a_file_that_is_no_record_is_named(tmp_path: Path, text: str) -> None:
    path = tmp_path / "one.json"
    path.write_text(text)
    with pytest.raises(record.RecordError, match=r"one\.json"):
        record.read(path)


def row(ratio: float, *, name: str = "a", target: Target | None = None) -> Comparison:
    return Comparison(name=name, peer="b", pairs=((ratio, 1.0),), unit="ms", target=target)


@pytest.mark.parametrize(
    ("ratios", "verdict"),
    [
        ((1.0, 1.1, 1.2), "agree"),
        ((1.0, 1.3, 1.0), "APART"),
        ((0.0, 0.0), "agree"),
        ((0.0, 0.1), "APART"),
    ],
)
def test_runs_agree_when_their_ratios_are_close(ratios: tuple[float, ...], verdict: str) -> None:
    (found,) = record.agreements([[row(ratio)] for ratio in ratios])
    assert found.ratios == ratios
    assert found.verdict == verdict


@pytest.mark.parametrize(
    ("ratios", "verdict"),
    [((0.1, 0.4), "apart, far within the target"), ((0.1, 0.6), "APART")],
)
def test_apart_does_not_matter_far_within_the_target(
    ratios: tuple[float, ...], verdict: str
) -> None:
    target = Target(bound="≤", value=1)
    (found,) = record.agreements([[row(ratio, target=target)] for ratio in ratios])
    assert found.verdict == verdict


def test_a_row_that_a_run_lacks_is_told() -> None:
    found = record.agreements([[row(1.0)], [row(1.0), row(2.0, name="new")]])
    assert [(one.row.name, one.ratios, one.verdict) for one in found] == [
        ("a", (1.0, 1.0), "agree"),
        ("new", (None, 2.0), "not in every run"),
    ]


def test_only_rows_are_compared() -> None:
    assert len(record.agreements([FINDINGS, FINDINGS])) == 2
