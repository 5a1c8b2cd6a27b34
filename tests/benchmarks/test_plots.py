"""Data of the plots, and checks that their files in docs/ can be shown there."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

import plots
from measure import Curve, Distribution, Finding

DOCS = Path(__file__).resolve().parents[2] / "docs/pictures"
FILES = sorted(DOCS.glob("benchmarks-*.svg"))
MAX_BYTES = 150_000

LIGHT, DARK = "#ffffff", "#0d1117"
"""Pages of code hosts."""


def test_a_distribution_is_counted_from_below() -> None:
    assert plots.cumulative([3.0, 1.0, 2.0, 2.0]) == (
        (1.0, 0.25),
        (2.0, 0.5),
        (2.0, 0.75),
        (3.0, 1.0),
    )


def test_a_long_distribution_is_thinned_and_keeps_its_end() -> None:
    points = plots.cumulative([float(n) for n in range(10_000)])
    assert len(points) == plots.MAX_STEPS
    assert points[-1] == (9999.0, 1.0)


def test_latencies_are_in_milliseconds_and_the_fastest_is_first() -> None:
    found: list[Finding] = [
        Distribution(name="slow", samples=(10.0, 20.0, 30.0)),
        Distribution(name="fast", samples=(1.0, 2.0, 3.0)),
        Distribution(name="of many clients", samples=(1.0,), plotted=False),
    ]
    fast, slow = plots.lines(plots.LATENCY, found)
    assert (fast.name, slow.name) == ("fast", "slow")
    assert [x for x, _ in fast.points] == [1.0, 2.0, 3.0]


def test_a_panel_has_its_own_curves_only() -> None:
    curves: list[Finding] = [
        Curve(plot="fresh", name="a", points=((1, 1.0),)),
        Curve(plot="exec", name="b", points=((1, 1.0),)),
    ]
    panel = plots.Panel(name="exec", across="clients", up="calls")
    assert [line.name for line in plots.lines(panel, curves)] == ["b"]


def test_nothing_measured_draws_nothing() -> None:
    assert [plots.svg(plot, []) for plot in plots.PLOTS] == [None] * len(plots.PLOTS)


@pytest.mark.parametrize("background", [LIGHT, DARK])
def test_every_colour_is_seen_on_light_and_dark_pages(background: str) -> None:
    """WCAG 2.2: 3 for graphics (1.4.11); text has no better middle than a little above 4."""
    assert contrast(plots.INK, background) >= 4
    for colour in plots.LINES:
        assert contrast(colour, background) >= 3, colour


def contrast(one: str, other: str) -> float:
    """WCAG 2.2, contrast ratio."""
    lighter, darker = sorted((luminance(one), luminance(other)), reverse=True)
    return (lighter + 0.05) / (darker + 0.05)


def luminance(colour: str) -> float:
    """WCAG 2.2, relative luminance."""
    channels = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def test_every_file_that_is_there_is_of_a_plot() -> None:
    assert {path.name for path in FILES} <= {plot.file for plot in plots.PLOTS}


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_the_file_says_nothing_about_where_and_when_it_was_made(path: Path) -> None:
    text = path.read_text()
    assert len(text) <= MAX_BYTES
    ET.fromstring(text)
    assert not re.search(r"\b20\d\d-\d\d-\d\d", text)
    assert not re.search(r"/(home|root|tmp|usr|work)\b", text)
    assert not re.search(r"#(ffffff|000000)\b", text), "a colour that one of the pages hides"
