"""`make bench`: ratios against peers measured in the same run.

make bench                          the table
make bench ARGS=--write             and docs/benchmarks.md
make bench ARGS='--rounds 50'       more pairs
"""

from __future__ import annotations

import argparse
import compileall
import os
import sys
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.append(str(ROOT / "tools"))  # scripts are no package

from cases import Bench, measure_all  # noqa: E402
from measure import Comparison  # noqa: E402
from private_supervisor import private_supervisor  # noqa: E402

PAGE = ROOT / "docs/benchmarks.md"
DEFAULT_ROUNDS = 20

INTRODUCTION = """\
# Benchmarks

Written by `make bench ARGS=--write`; a target is a budget that the design has to keep. Each number
is a ratio of two measurements taken alternately in one run, so it carries over to other machines as
far as a ratio can: the median of the pairs, and between which values all of them lay. No test
depends on any of them.

"""

METHOD = """
How each is measured:

- `nsm-mcp` to `initialize`: from starting the process to having read its answer; a supervisor runs.
  The peer is a server with one tool that does nothing, made with the MCP SDK
  (`benchmarks/peers/sdk_server.py`).
- Memory: proportional set size (PSS) of processes that wait for input after `initialize`, all
  measured at the same moment.
- `run` through the shim: the SDK's client calls `run` with one statement in a live Python session,
  and the peer's tool that does nothing.
- Exec on the control socket: `nsm.Client.run` with one statement in a live Python session against
  the same statement through `jupyter_client` to `ipykernel`, until its reply.
- Cold start: from starting `nsm-supervisor` to the answer to `ping` on its control socket.
- `nsm ps`: the whole process, with three sessions alive.
- `python -c pass` is the interpreter of the same virtual environment.
"""


def table(rows: Sequence[Comparison]) -> list[list[str]]:
    """Cells that hold on any machine."""
    header = ["what", "compared with", "ratio", "from .. to", "target", ""]
    return [header, *(cells(row) for row in rows)]


def cells(row: Comparison) -> list[str]:
    """One row: name, peer, ratio, spread, target, verdict."""
    spread = f"{number(min(row.ratios))} .. {number(max(row.ratios))}"
    ratio = f"{number(row.ratio)} times faster" if row.faster else number(row.ratio)
    target = "" if row.target is None else str(row.target)
    return [row.name, row.peer, ratio, spread, target, row.verdict]


def number(value: float) -> str:
    """Two or three significant digits without an exponent."""
    return f"{value:.0f}" if value >= 100 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"


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


def absolute(row: Comparison) -> list[str]:
    """This machine's medians, for the terminal only."""
    ours = sorted(pair[0] for pair in row.pairs)[len(row.pairs) // 2]
    peer = sorted(pair[1] for pair in row.pairs)[len(row.pairs) // 2]
    return [row.name, f"{ours:.2f} {row.unit}", f"{peer:.2f} {row.unit}", row.peer]


def main() -> int:
    """Measure, print, and write the page if asked to."""
    parser = argparse.ArgumentParser(description="Ratios against peers measured in the same run.")
    parser.add_argument("--rounds", type=int, default=DEFAULT_ROUNDS, help="pairs of each kind")
    parser.add_argument("--write", action="store_true", help=f"write {PAGE.relative_to(ROOT)}")
    options = parser.parse_args()
    rounds: int = options.rounds
    if rounds < 1:
        parser.error("--rounds: at least 1")

    # Installed packages are compiled; so that the same holds for ours and the peer's script:
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    for folder in ("agent", "benchmarks", "clients", "supervisor"):
        compileall.compile_dir(ROOT / folder, quiet=1)

    rows: list[Comparison] = []
    with private_supervisor("nsm-bench-") as variables:
        for row in measure_all(Bench(rounds=rounds, variables=variables)):
            print(f"measured: {row.name}", file=sys.stderr)
            rows.append(row)
    if options.write:
        PAGE.write_text(INTRODUCTION + markdown(table(rows)) + METHOD, encoding="utf-8")
    print(aligned(table(rows)))
    print()
    print(aligned([["medians here", "nsm", "peer", ""], *(absolute(row) for row in rows)]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
