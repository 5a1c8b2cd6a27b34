"""The plots of the page: which there are, their data, and how they are drawn.

Drawing needs matplotlib, which only `make bench` installs; everything else here is pure.
"""

from __future__ import annotations

import importlib
import io
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import cycle
from pathlib import Path
from statistics import median
from typing import Any

from measure import Curve, Distribution, Finding


@dataclass(frozen=True, slots=True, kw_only=True)
class Panel:
    """One pair of axes.

    Attributes:
        name: `Curve.plot` of its lines; "latency" for distributions.
        across, up: what the axes show.
        logarithmic: the upward one; the other one always is.
    """

    name: str
    across: str
    up: str
    logarithmic: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Plot:
    """One file.

    Attributes:
        file: its name, in `docs/pictures/`.
        title: for those who cannot see it.
        words: what it shows, below it.
    """

    file: str
    title: str
    words: str
    panels: tuple[Panel, ...]


LATENCY = Panel(name="latency", across="milliseconds", up="part of the calls")

PLOTS = (
    Plot(
        file="benchmarks-latency.svg",
        title="Distribution of latencies",
        words="How many of the calls take how long at most, one call after the other.",
        panels=(LATENCY,),
    ),
    Plot(
        file="benchmarks-memory.svg",
        title="Memory against the number of sessions",
        words="All processes of all sessions together, and the supervisor beside them, in the\n"
        "memory (PSS) that one ipykernel takes.",
        panels=(
            Panel(name="memory", across="sessions", up="memory, in ipykernels", logarithmic=True),
        ),
    ),
    Plot(
        file="benchmarks-throughput.svg",
        title="Throughput against concurrency",
        words="Calls a second of all clients together, each a process of its own;\n"
        "small programs with a test each, all of one client.",
        panels=(
            Panel(name="fresh", across="clients, fresh jails", up="calls a second"),
            Panel(name="exec", across="clients, live sessions", up="calls a second"),
            Panel(name="evals", across="programs at once", up="programs a second"),
        ),
    ),
    Plot(
        file="benchmarks-cores.svg",
        title="Throughput against cores",
        words="Fresh jails a second of two clients for each core, when the supervisor, the jails\n"
        "and the clients may use only so many cores.",
        panels=(Panel(name="cores", across="cores", up="calls a second"),),
    ),
    Plot(
        file="benchmarks-scale.svg",
        title="Cost against the number of sessions",
        words="What things cost beside sessions that have run code, as a multiple of their cost\n"
        "with one session.",
        panels=(
            Panel(name="scale", across="sessions", up="cost, with 1 session = 1", logarithmic=True),
        ),
    ),
)

# Seen on white and on the dark pages of code hosts alike, without a style sheet: which of the two a
# picture lies on, it cannot know for sure.
INK = "#757c85"
LINES = ("#2f81d0", "#c9662b", "#3d9450", "#a46bc9", "#c4576b", "#8a7f2a", INK)
MARKERS = "os^DvpX"
TEXT_SIZE = 9
PANEL_INCHES = (6.4, 3.4)
PANELS_INCHES = (5.5, 3.0)
"""Size of a panel that is beside others."""

MAX_STEPS = 100
"""Points of a line of a distribution: more cannot be told apart, and make a large file."""


class PlotsMissingError(Exception):
    """matplotlib is not installed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """Points of a line to draw: x and y."""

    name: str
    points: tuple[tuple[float, float], ...]


def lines(panel: Panel, findings: Iterable[Finding]) -> list[Line]:
    """The lines of a panel; none where nothing of it was measured."""
    if panel == LATENCY:
        return latencies(
            [found for found in findings if isinstance(found, Distribution) and found.plotted]
        )
    return [
        Line(name=found.name, points=found.points)
        for found in findings
        if isinstance(found, Curve) and found.plot == panel.name
    ]


def latencies(distributions: Sequence[Distribution]) -> list[Line]:
    """Cumulative distributions, the fastest first."""
    ordered = sorted(distributions, key=lambda found: median(found.samples))
    return [Line(name=found.name, points=cumulative(found.samples)) for found in ordered]


def cumulative(samples: Sequence[float]) -> tuple[tuple[float, float], ...]:
    """(value, part of the samples that are at most that), thinned to `MAX_STEPS`."""
    ordered = sorted(samples)
    steps = min(len(ordered), MAX_STEPS)
    ranks = [round((step + 1) * len(ordered) / steps) for step in range(steps)]
    return tuple((ordered[rank - 1], rank / len(ordered)) for rank in ranks)


def svg(plot: Plot, findings: Sequence[Finding]) -> str | None:
    """The text of a plot's file; None where nothing of it was measured.

    The same findings give the same text: no date, no random name, no path.

    Raises:
        PlotsMissingError: matplotlib is not installed.
    """
    if not any(lines(panel, findings) for panel in plot.panels):
        return None
    try:
        matplotlib: Any = importlib.import_module("matplotlib")
    except ImportError:
        raise PlotsMissingError("matplotlib is not installed; `make bench` does that") from None
    settings = {
        "svg.hashsalt": plot.file,  # names of clip paths are random without it
        "svg.fonttype": "none",  # text stays text, in whatever font the reader has
        "font.family": "sans-serif",
        "font.size": TEXT_SIZE,
        "text.color": INK,
        "axes.labelcolor": INK,
        "axes.edgecolor": INK,
        "xtick.color": INK,
        "ytick.color": INK,
        "legend.frameon": False,
        "legend.fontsize": TEXT_SIZE - 1,
        "axes.spines.top": False,
        "axes.spines.right": False,
    }
    with matplotlib.rc_context(settings):
        out = io.StringIO()
        nothing = dict.fromkeys(("Date", "Creator", "Format", "Type"))
        figure(plot, findings).savefig(out, format="svg", transparent=True, metadata=nothing)
    return "\n".join(line.rstrip() for line in out.getvalue().splitlines()) + "\n"


def figure(plot: Plot, findings: Sequence[Finding]) -> Any:
    """A plot as matplotlib's figure, all panels beside each other."""
    figures: Any = importlib.import_module("matplotlib.figure")
    number = len(plot.panels)
    size = PANEL_INCHES if number == 1 else (PANELS_INCHES[0] * number, PANELS_INCHES[1])
    made = figures.Figure(figsize=size, layout="constrained")
    row = made.subplots(1, number, squeeze=False)[0]
    for axes, panel in zip(row, plot.panels, strict=True):
        draw(axes, panel, lines(panel, findings))
    return made


def draw(axes: Any, panel: Panel, drawn: Sequence[Line]) -> None:
    """One panel: costs and numbers on logarithmic scales, parts of a whole on a linear one."""
    marked = panel != LATENCY
    for line, colour, marker in zip(drawn, cycle(LINES), cycle(MARKERS), strict=False):
        across, up = zip(*line.points, strict=True)
        axes.plot(
            across,
            up,
            color=colour,
            marker=marker if marked else None,
            markersize=4,
            linewidth=1.6,
            label=line.name,
        )
    axes.set_xscale("log")
    axes.xaxis.set_major_formatter(plain)
    axes.xaxis.minorticks_off()
    if marked:
        axes.set_xticks(sorted({x for line in drawn for x, _ in line.points}))
    if panel.logarithmic:
        ticker: Any = importlib.import_module("matplotlib.ticker")
        axes.set_yscale("log")
        axes.yaxis.set_major_locator(ticker.LogLocator(subs=(1, 2, 5)))
        axes.yaxis.set_major_formatter(plain)
        axes.yaxis.minorticks_off()
    else:
        axes.set_ylim(bottom=0)
    axes.grid(color=INK, alpha=0.25, linewidth=0.5)
    axes.set_xlabel(panel.across)
    axes.set_ylabel(panel.up)
    if drawn:  # beside the lines, which may be anywhere
        axes.legend(loc="center left", bbox_to_anchor=(1, 0.5))


def plain(value: float, _position: int) -> str:
    """A tick of a logarithmic scale as people write numbers."""
    return f"{value:,.0f}" if value >= 1 else f"{value:g}"


def write(findings: Sequence[Finding], folder: Path) -> list[Path]:
    """Write every plot of which something was measured; which files.

    Raises:
        PlotsMissingError: matplotlib is not installed.
    """
    written: list[Path] = []
    for plot in PLOTS:
        text = svg(plot, findings)
        if text is not None:
            path = folder / plot.file
            path.write_text(text, encoding="utf-8")
            written.append(path)
    return written
