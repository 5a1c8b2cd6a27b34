"""`nsm status times`: how long things take."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nsm.cli import connection, terminal
from nsm.cli.options import EXIT_OK, Parser
from nsm.cli.render.formats import count, duration, table
from nsm.wire.answers import read

if TYPE_CHECKING:
    import argparse

    from nsm.wire.telemetry import EnvironmentStats, StartStats, Stats, Times

_OUTCOMES = ("ok", "error", "timeout", "interrupted", "lost")

_EPILOG = """\
Counted since the supervisor started. P50 is what half of them did not exceed, P99 what 99 of 100
did not; they are taken from buckets, and at most 25 % off. MAX is exact. WAIT is the part of the
latency before the code was sent to its session.
"""


def parser() -> Parser:
    """The verb's options."""
    parser = Parser("status times", "Show how long things take. Starts no supervisor.", _EPILOG)
    parser.add_json("one object, or null when no supervisor runs,")
    return parser


def main(arguments: list[str]) -> int:
    """Show."""
    return show(parser().parse_args(arguments))


def show(options: argparse.Namespace) -> int:
    """Show, with parsed options."""
    client = connection.connect(options)
    if client is None:
        return EXIT_OK
    with client:
        wire = client.call("stats")
    from nsm.wire.telemetry import Stats  # noqa: PLC0415  # not for --help

    stats = read(Stats, wire)
    terminal.answer(options, stats, lambda: render(stats, terminal.width()))
    return EXIT_OK


def render(stats: Stats, width: int | None = None) -> str:
    """The tables of `nsm status times`."""
    paragraphs: list[str] = []
    if stats.environments:
        paragraphs.append(
            table(
                "ENV RUNS OK ERROR TIMEOUT INTERRUPTED LOST P50 P90 P99 MAX WAIT P99".split(),
                map(_environment_cells, stats.environments),
                right="RUNS OK ERROR TIMEOUT INTERRUPTED LOST P50 P90 P99 MAX WAIT",
                width=width,
                least="OK P90 INTERRUPTED LOST",
            )
        )
    if stats.starts:
        paragraphs.append(
            table(
                "ENV START COUNT P50 P90 P99 MAX".split(),
                map(_start_cells, stats.starts),
                right="COUNT P50 P90 P99 MAX",
                width=width,
                least="P90",
            )
        )
    hits = f"{count(stats.pool_hits, 'hit')}, {stats.pool_misses} missed"
    loop = stats.event_loop
    paragraphs.append(
        f"since {duration(stats.uptime_s)}; pool: {hits}; "
        f"event loop busy at a time: P99 {short(loop.p99_s)}, at most {short(loop.max_s)}"
    )
    if width is not None and len(paragraphs[-1]) > width:
        paragraphs[-1] = paragraphs[-1].replace("; event", ";\nevent")
    return "\n\n".join(paragraphs)


def _environment_cells(row: EnvironmentStats) -> list[str]:
    counts = (str(row.outcomes.get(outcome, 0)) for outcome in _OUTCOMES)
    waits = [short(row.wait.p50_s), short(row.wait.p99_s)]
    return [row.env, str(row.latency.total), *counts, *_cells(row.latency), *waits]


def _start_cells(row: StartStats) -> list[str]:
    return [row.env, row.kind, str(row.times.total), *_cells(row.times)]


def _cells(times: Times) -> list[str]:
    return [short(times.p50_s), short(times.p90_s), short(times.p99_s), short(times.max_s)]


def short(seconds: float | None) -> str:
    """A duration with two or three digits, whatever its size."""
    if seconds is None:
        return "-"
    if seconds < 0.0995e-2:
        return f"{seconds * 1e6:.0f}us"
    if seconds < 0.9995:
        return f"{seconds * 1e3:.{0 if seconds >= 0.0995 else 1}f}ms"
    return f"{seconds:.1f}s" if seconds < 60 else duration(seconds)
