"""The table and the page."""

from __future__ import annotations

import pytest

import plots
import record
import report
from measure import Comparison, Curve, Distribution, LeftOut, Machine, Target

ROW = Comparison(
    name="a call",
    peer="another",
    pairs=((1.0, 12.0), (1.0, 8.0), (1.0, 10.0)),
    unit="ms",
    target=Target(bound="≥", value=10),
    more=True,
)
FLOOR = Comparison(name="the kernel", peer="another", pairs=((0.5, 10.0),), unit="ms", floor=True)


def test_a_row_has_its_medians_ratio_spread_target_and_verdict() -> None:
    assert report.table([ROW])[1] == [
        "a call",
        "1.00 ms",
        "another",
        "10.0 ms",
        "10.0 times faster",
        "8.00 .. 12.0",
        "≥ 10",
        "met, near",
    ]


def test_a_floor_stands_out() -> None:
    assert report.cells(FLOOR)[0] == "floor: the kernel"


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0"),
        (0.00123, "0.0012"),
        (0.034, "0.034"),
        (0.5, "0.50"),
        (12.34, "12.3"),
        (1930, "1,930"),
    ],
)
def test_numbers_are_short(value: float, text: str) -> None:
    assert report.number(value) == text


def test_a_scale_table_has_gaps_where_nothing_was_measured() -> None:
    curves = [
        Curve(plot="memory", name="ours", points=((1, 0.5), (1000, 80.0))),
        Curve(plot="memory", name="theirs", points=((1, 1.0), (4, 4.0))),
    ]
    assert report.scale_table(curves) == [
        ["", "1", "4", "1,000"],
        ["ours", "0.50", "", "80.0"],
        ["theirs", "1.00", "4.00", ""],
    ]


def test_percentiles_are_of_all_calls() -> None:
    found = Distribution(name="a call", samples=tuple(float(n) for n in range(1000, 0, -1)))
    assert report.percentiles([ROW, found])[1] == ["a call", "1,000", "500", "950", "990"]


def test_the_page_has_the_machine_rows_percentiles_plots_and_what_is_missing() -> None:
    machine = Machine(
        cores=2, memory_gb=8.4, processor="Acme 1", kernel="6.1", python="3.11.2", user="root"
    )
    curve = Curve(plot="memory", name="ours", points=((1, 0.5), (10, 4.0)))
    missing = LeftOut(what="a peer", why="it is not installed")
    calls = Distribution(name="many calls", samples=(1.0, 2.0), plotted=False)
    page = report.text(report.data([machine, ROW, FLOOR, curve, calls, missing]))
    assert "2 cores of Acme 1, 8 GB of memory, Linux 6.1, Python 3.11.2, root" in page
    assert "| a call | 1.00 ms | another | 10.0 ms | 10.0 times faster |" in page
    assert "| many calls | 2 | 1.00 | 2.00 | 2.00 |" in page
    assert "| sessions | 1 | 10 |" in page
    assert "- a peer: it is not installed\n" in page
    for plot in plots.PLOTS:
        assert f"](../pictures/{plot.file})" in page


def test_an_agreement_has_a_column_for_each_run() -> None:
    header, cells = report.agreement_table(record.agreements([[ROW], [ROW]]), 2)
    assert header[2:4] == ["run 1", "run 2"]
    assert cells[2:5] == ["10.0", "10.0", "0 %"]
