"""The table, for a terminal and for the page; pure."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from measure import Comparison, Curve, Finding, LeftOut
from plots import PLOTS
from record import Agreement

FLOOR_MARK = "floor: "

INTRODUCTION = """\
# Benchmarks

Written by `make bench`. Each number is a ratio of two measurements taken alternately in one run, so
it carries over to other machines as far as a ratio can: the median of the pairs, and between which
values all of them lay. A target is a budget that the design has to keep; *met, near* is within
15 % of it. Below some rows is their *floor*: the same ratio for the least that the kernel and
Python need for it, with none of nsm's code; no design of this kind gets past it. No test depends on
any of these numbers.

"""

METHOD = """
## How each is measured

- The peers run on the same machine in the same run. `python -c pass` is the interpreter of the
  same virtual environment; ipykernel is driven by jupyter_client; the MCP SDK's server has one tool
  that does nothing (`benchmarks/peers/sdk_server.py`).
- *Fastest cold bwrap + python*: the same namespaces as a session has, `/usr` read-only, and nothing
  else, not even `/proc`, `/dev`, `/tmp` or a limit; `python3 -I -S` with pipes, started by
  posix_spawn (`benchmarks/peers/cold.py`). It is less than a session, so the ratio is at our cost.
- `nsm-mcp` to `initialize`: from starting the process to having read its answer; a supervisor runs.
- Memory of `nsm-mcp`: proportional set size (PSS) of processes that wait for input after
  `initialize`, all measured at the same moment.
- `run` through the shim: the SDK's client calls `run` with one statement in a live Python session,
  and the peer's tool that does nothing.
- Exec on the control socket: `nsm.Client.run` with one statement in a live Python session against
  the same statement through `jupyter_client` to `ipykernel`, until its reply.
- One-shot run: `nsm.Client.run` with one statement and no session, from the call to the result. In
  the first row the pool has refilled before each call; *back to back*, twenty calls follow each
  other at once.
- Sessions a second: four clients, each a process of its own, do one-shot runs for seconds without a
  pause; so do four that start cold jails. What the pool had ready at the start does not count for
  much: it lasts a few hundredths of that time.
- Memory of one more session: PSS of all its processes (a cold jail's bwrap included), the mean over
  40 sessions that have run one statement, five times; against the mean of three kernels that have
  run one, five times. The template that they are forks of, one for each environment and project, is
  not counted. *Whole system*: by how much the kernel's MemAvailable became less for each, which
  includes the kernel's own memory.
- 1,000 live sessions: each has run code and keeps a variable, which is asked for at the end. The
  supervisor's memory is its whole resident set, its budget 150 megabytes; the budget of `nsm ps` is
  0.3 seconds. CPU time is measured over four times three seconds.
- Cold start: from starting `nsm-supervisor` to the answer to `ping` on its control socket.
- `nsm ps`: the whole process, with three sessions alive.
- Start of a box: a command that does nothing, from starting the program to its end; the supervisor
  makes the box's sockets. The peer is bwrap with the arguments of the same plan, given in a file by
  descriptor, without those sockets. A claude that does nothing is a shell script.
- Restart: two supervisors, one of which has a hundred sessions, are killed with SIGKILL and started
  again, or asked to reload, in turn. From the kill, or the last answer before the reload, to the
  answer of the next program to `sessions`, and to a statement in one of the sessions where there
  are any. All have what they kept at the end.
- Floors: forks are of a Python of a few megabytes inside a bubblewrap jail, with the namespaces and
  mounts of a session (`benchmarks/peers/fork_floor.py`); messages of 200 bytes go through Python
  processes that only read and write (`benchmarks/peers/relay.py`).

`make bench ARGS='--json FILE'` keeps the raw numbers of a run, and `make bench ARGS='--compare FILE
FILE FILE'` says how far apart several runs are.
"""


def comparisons(findings: Iterable[Finding]) -> list[Comparison]:
    """The rows of the table."""
    return [row for row in findings if isinstance(row, Comparison)]


def table(rows: Sequence[Comparison]) -> list[list[str]]:
    """Cells that hold on any machine."""
    header = ["what", "compared with", "ratio", "from .. to", "target", ""]
    return [header, *(cells(row) for row in rows)]


def cells(row: Comparison) -> list[str]:
    """One row: name, peer, ratio, spread, target, verdict."""
    spread = f"{number(min(row.ratios))} .. {number(max(row.ratios))}"
    target = "" if row.target is None else str(row.target)
    return [title(row), row.peer, ratio_text(row, row.ratio), spread, target, row.verdict]


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
        return f"{value:.0f}"
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


def page(findings: Sequence[Finding]) -> str:
    """The whole page."""
    parts = [INTRODUCTION, markdown(table(comparisons(findings)))]
    missing = [finding for finding in findings if isinstance(finding, LeftOut)]
    if missing:
        parts.append("\nNot measured in this run:\n\n")
        parts += [f"- {finding.what}: {finding.why}\n" for finding in missing]
    parts.append("\n## Distributions, and cost against scale\n")
    for plot in PLOTS:
        parts.append(f"\n![{plot.title}]({plot.file})\n\n{plot.words}\n")
        for panel in plot.panels:
            curves = [row for row in findings if isinstance(row, Curve) and row.plot == panel.name]
            if curves:
                parts.append("\n" + markdown(named(panel.across, scale_table(curves))))
    parts.append(METHOD)
    return "".join(parts)


def named(across: str, rows: list[list[str]]) -> list[list[str]]:
    """A scale table with a name in its empty corner."""
    return [[across, *rows[0][1:]], *rows[1:]]


def absolute(row: Comparison) -> list[str]:
    """This machine's medians, for the terminal only."""
    ours = sorted(pair[0] for pair in row.pairs)[len(row.pairs) // 2]
    peer = sorted(pair[1] for pair in row.pairs)[len(row.pairs) // 2]
    return [title(row), f"{ours:.3g} {row.unit}", f"{peer:.3g} {row.unit}", row.peer]


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
