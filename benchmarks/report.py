"""The tables, for a terminal, for docs/data/benchmarks.json and for the page made from it."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

import pages
from measure import Comparison, Curve, Distribution, Finding, LeftOut, Machine, Unit
from plots import PLOTS
from record import Agreement

FLOOR_MARK = "floor: "
PERCENTILES = (50, 95, 99)

INTRODUCTION = """\
# Benchmarks

Measured by `make bench` on this machine:
{machine}.

Times, sizes and rates are medians of one run there. Each ratio is of two measurements taken
alternately in that run, so it carries over to other machines as far as a ratio can: the median of
the pairs, and between which values all of them lay. A target is a budget that the design has to
keep; *met, near* is within 15 % of it. Below some rows is their *floor*: the same ratio for the
least that the kernel and Python need for it, with none of nsm's code; no design of this kind gets
past it. `benchmarks/parts` says what each row measures.

"""


def comparisons(findings: Iterable[Finding]) -> list[Comparison]:
    """The rows of the table."""
    return [row for row in findings if isinstance(row, Comparison)]


def table(rows: Sequence[Comparison]) -> list[list[str]]:
    """Cells of the rows."""
    header = ["what", "nsm", "compared with", "peer", "ratio", "from .. to", "target", ""]
    return [header, *(cells(row) for row in rows)]


def cells(row: Comparison) -> list[str]:
    """One row: name, median, peer, its median, ratio, spread, target, verdict."""
    ours, peer = (quantity(value, row.unit) for value in row.medians)
    spread = f"{number(min(row.ratios))} .. {number(max(row.ratios))}"
    target = "" if row.target is None else str(row.target)
    ratio = ratio_text(row, row.ratio)
    return [title(row), ours, row.peer, peer, ratio, spread, target, row.verdict]


def quantity(value: float, unit: Unit) -> str:
    """A measured value with its unit."""
    return f"{number(value)} {unit}"


def percentiles(findings: Iterable[Finding]) -> list[list[str]]:
    """A table of how long calls take at most."""
    header = ["milliseconds", "calls", *(f"p{percent}" for percent in PERCENTILES)]
    rows = [
        [
            found.name,
            f"{len(found.samples):,}",
            *(number(found.percentile(percent)) for percent in PERCENTILES),
        ]
        for found in findings
        if isinstance(found, Distribution)
    ]
    return [header, *rows]


def title(row: Comparison) -> str:
    """Return the title of a row; floors stand out."""
    return f"{FLOOR_MARK}{row.name}" if row.floor else row.name


def ratio_text(row: Comparison, ratio: float) -> str:
    """A ratio in words that say which way it counts."""
    if not row.more:
        return number(ratio)
    return f"{number(ratio)} times " + ("as many" if row.unit == "a second" else "faster")


def number(value: float) -> str:
    """Two or three significant digits without an exponent."""
    if value == 0:
        return "0"
    if value >= 100:
        return f"{value:,.0f}"
    if value >= 10:
        return f"{value:.1f}"
    return f"{value:.2f}" if value >= 0.1 else f"{value:.2g}"


def scale_table(curves: Sequence[Curve]) -> list[list[str]]:
    """Lines of one plot as cells, a column for each number that any of them has."""
    numbers = sorted({x for curve in curves for x, _ in curve.points})
    header = ["", *(f"{x:,.0f}" for x in numbers)]
    rows = [
        [
            curve.name,
            *(number(dict(curve.points)[x]) if x in dict(curve.points) else "" for x in numbers),
        ]
        for curve in curves
    ]
    return [header, *rows]


def aligned(rows: Sequence[Sequence[str]]) -> str:
    """A table for a terminal."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    padded = (
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        for row in rows
    )
    return "\n".join(line.rstrip() for line in padded)


def markdown(rows: Sequence[Sequence[str]]) -> str:
    """The same table for the page."""
    lines = ["| " + " | ".join(row) + " |" for row in rows]
    lines.insert(1, "| " + " | ".join("---" for _ in rows[0]) + " |")
    return "\n".join(lines) + "\n"


def data(findings: Sequence[Finding]) -> dict[str, Any]:
    """Everything that the page shows, as cells of tables."""
    machine = next((found for found in findings if isinstance(found, Machine)), None)
    missing = [found for found in findings if isinstance(found, LeftOut)]
    scale: dict[str, list[list[str]]] = {}
    for panel in (panel for plot in PLOTS for panel in plot.panels):
        curves = [row for row in findings if isinstance(row, Curve) and row.plot == panel.name]
        if curves:
            scale[panel.name] = named(panel.across, scale_table(curves))
    return {
        "machine": str(machine or "one that this run did not name"),
        "comparisons": table(comparisons(findings)),
        "left_out": [[finding.what, finding.why] for finding in missing],
        "percentiles": percentiles(findings),
        "scale": scale,
    }


def page() -> str:
    """Return the whole page, from what is kept."""
    return text(pages.read("benchmarks"))


def text(kept: dict[str, Any]) -> str:
    """Return the page of some data."""
    parts = [INTRODUCTION.format(machine=kept["machine"]), markdown(kept["comparisons"])]
    if kept["left_out"]:
        parts.append("\nNot measured in this run:\n\n")
        parts += [f"- {what}: {why}\n" for what, why in kept["left_out"]]
    parts.append(f"\n## Percentiles\n\n{markdown(kept['percentiles'])}")
    parts.append("\n## Distributions, and cost against scale\n")
    for plot in PLOTS:
        parts.append(f"\n![{plot.title}](../pictures/{plot.file})\n\n{plot.words}\n")
        rows = [kept["scale"][panel.name] for panel in plot.panels if panel.name in kept["scale"]]
        parts += [f"\n{markdown(each)}" for each in rows]
    return "".join(parts)


def named(across: str, rows: list[list[str]]) -> list[list[str]]:
    """A scale table with a name in its empty corner."""
    return [[across, *rows[0][1:]], *rows[1:]]


def agreement_table(found: Sequence[Agreement], runs: int) -> list[list[str]]:
    """Several runs beside each other."""
    header = [
        "what",
        "compared with",
        *(f"run {n + 1}" for n in range(runs)),
        "apart",
        "target",
        "",
    ]
    return [header, *(agreement_cells(one) for one in found)]


def agreement_cells(one: Agreement) -> list[str]:
    """One row in several runs."""
    ratios = ["" if ratio is None else number(ratio) for ratio in one.ratios]
    target = "" if one.row.target is None else str(one.row.target)
    known = None not in one.ratios and math.isfinite(one.apart)
    apart = f"{100 * one.apart:.0f} %" if known else ""
    return [title(one.row), one.row.peer, *ratios, apart, target, one.verdict]
