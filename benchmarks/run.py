"""`make bench`: measurements beside those of peers in the same run.

make bench                                        the table; docs/data/benchmarks.json and its plots
make bench ARGS='--only exec --rounds 5'          a part of the table alone
make bench ARGS='--keep-none --json one.json'     the raw numbers in a file
make bench ARGS='--keep-from one.json'            data and plots again from such a file
make bench ARGS='--compare one.json two.json'     how far apart several runs are
"""

from __future__ import annotations

import argparse
import compileall
import os
import signal
import sys
import time
import traceback
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType

ROOT = Path(__file__).resolve().parent.parent
sys.path += [str(ROOT / "tools"), str(ROOT / "tests" / "support")]  # scripts are no package

import pages  # noqa: E402
import plots  # noqa: E402
import record  # noqa: E402
import report  # noqa: E402
from bench import MOST_SESSIONS, Bench  # noqa: E402
from machine import machine  # noqa: E402
from measure import Finding, LeftOut, Machine  # noqa: E402
from parts import PARTS, part  # noqa: E402

PICTURES = ROOT / "docs/pictures"
DEFAULT_ROUNDS = 20
INTERRUPTED = 130


def main(argv: Sequence[str] | None = None) -> int:
    """Measure or compare; returns the exit code."""
    parser = argparse.ArgumentParser(
        description="Measurements beside those of peers in the same run."
    )
    parser.add_argument("--rounds", type=int, default=DEFAULT_ROUNDS, help="pairs of each kind")
    parser.add_argument(
        "--only",
        action="append",
        choices=list(PARTS),
        metavar="PART",
        help=f"measure only this part, and keep nothing; again for more of {', '.join(PARTS)}",
    )
    parser.add_argument(
        "--sessions",
        type=int,
        default=MOST_SESSIONS,
        metavar="N",
        help="live sessions to go up to (%(default)s); for small machines",
    )
    parser.add_argument("--keep-none", action="store_true", help="leave data and plots as they are")
    parser.add_argument("--json", type=Path, metavar="FILE", help="keep the raw numbers")
    parser.add_argument(
        "--compare", type=Path, nargs="+", metavar="FILE", help="compare runs, and measure nothing"
    )
    parser.add_argument(
        "--keep-from", type=Path, metavar="FILE", help="write data and plots, and measure nothing"
    )
    options = parser.parse_args(argv)
    if options.rounds < 1:
        parser.error("--rounds: at least 1")
    if not 1 <= options.sessions <= MOST_SESSIONS:
        parser.error(f"--sessions: 1 to {MOST_SESSIONS}")
    try:
        if options.compare:
            return compare(options.compare)
        if options.keep_from:
            write(record.read(options.keep_from))
            return 0
    except record.RecordError as error:
        parser.error(str(error))

    chosen = [name for name in PARTS if not options.only or name in options.only]
    run = measure(chosen, options.rounds, options.sessions)
    if options.json:
        options.json.write_text(record.to_json(run.findings), encoding="utf-8")
    print_table(run.findings)
    if run.interrupted:
        print("bench: interrupted; everything that was started is ended", file=sys.stderr)
        return INTERRUPTED
    if run.failed:
        print(f"bench: failed: {', '.join(run.failed)}; nothing was kept", file=sys.stderr)
        return 1
    if not options.only and not options.keep_none:
        write(run.findings)
    return 0


@dataclass(slots=True)
class Run:
    """Findings and circumstances of one run of the benchmarks.

    Attributes:
        failed: parts that ended with an exception; the others were measured.
        interrupted: by Ctrl-C or SIGTERM, before all were.
    """

    findings: list[Finding] = field(default_factory=list[Finding])
    failed: list[str] = field(default_factory=list[str])
    interrupted: bool = False


def measure(parts: Sequence[str], rounds: int, most_sessions: int) -> Run:
    """Measure parts; whatever happens, nothing that was started is left."""
    compile_sources()
    signal.signal(signal.SIGTERM, interrupt)
    run = Run(findings=[machine()])
    try:
        with ExitStack() as stack:
            bench = Bench(rounds=rounds, most_sessions=most_sessions, stack=stack)
            for name in parts:
                try:
                    measure_part(name, bench, run.findings)
                except Exception:  # noqa: BLE001 - one part's fault costs no other its numbers
                    print(f"\nbench: {name} failed:\n{traceback.format_exc()}", file=sys.stderr)
                    run.failed.append(name)
    except (KeyboardInterrupt, BaseExceptionGroup) as error:
        # Out of trio's nurseries it comes in a group.
        if isinstance(error, BaseExceptionGroup) and error.split(KeyboardInterrupt)[1]:
            raise
        print(file=sys.stderr)
        run.interrupted = True
    return run


def measure_part(name: str, bench: Bench, findings: list[Finding]) -> None:
    """Measure one part, and say how long it took and what was left out."""
    began_s, before = time.monotonic(), len(findings)
    print(f"bench: {name} ...", file=sys.stderr, end="", flush=True)
    findings.extend(part(name)(bench))  # one by one: an interruption keeps what there is
    print(f" {time.monotonic() - began_s:.0f} s", file=sys.stderr)
    for finding in findings[before:]:
        if isinstance(finding, LeftOut):
            print(f"bench: {finding}", file=sys.stderr)


def interrupt(_number: int, _frame: FrameType | None) -> None:
    """SIGTERM, as Ctrl-C, leaves nothing behind."""
    raise KeyboardInterrupt


def compile_sources() -> None:
    """Installed packages are compiled; so that the same holds for ours and the peers' scripts."""
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    for folder in ("agent", "benchmarks", "clients", "supervisor"):
        compileall.compile_dir(ROOT / folder, quiet=1)


def print_table(findings: Sequence[Finding]) -> None:
    """Print the findings."""
    for finding in findings:
        if isinstance(finding, Machine):
            print(f"{finding}\n")
    print(report.aligned(report.table(report.comparisons(findings))))
    durations = report.percentiles(findings)
    if len(durations) > 1:
        print(f"\n{report.aligned(durations)}")


def write(findings: Sequence[Finding]) -> None:
    """Write the data of the page, and the plots."""
    try:
        written = plots.write(findings, PICTURES)
    except plots.PlotsMissingError as error:
        print(f"bench: left out: the plots: {error}", file=sys.stderr)
        written = []
    kept = pages.keep("benchmarks", report.data(findings))
    names = ", ".join(str(path.relative_to(ROOT)) for path in [kept, *written])
    print(f"bench: wrote {names}", file=sys.stderr)


def compare(files: Sequence[Path]) -> int:
    """Print runs beside each other; 1 if any row is too far apart."""
    found = record.agreements([record.read(path) for path in files])
    print(report.aligned(report.agreement_table(found, len(files))))
    return 1 if any(one.verdict == "APART" for one in found) else 0


if __name__ == "__main__":
    sys.exit(main())
