"""`nsm status`: the supervisor itself, what it keeps ready, and what it counts."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from nsm.cli import connection, terminal
from nsm.cli.options import EXIT_FAILED, EXIT_OK, Parser
from nsm.cli.render.supervisor import pool_table, status_lines, times_tables
from nsm.wire.messages import read

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable

_OPENMETRICS = "application/openmetrics-text; version=1.0.0"

_EPILOG_OF_POOL = """\
HITS were there when asked for, MISSES had to be started first.
REFILL is what a start takes, P95 what at most 5 of 100 exceed.
"""

_EPILOG_OF_TIMES = """\
Counted since the supervisor started. P50 is what half of them did not exceed, P99 what 99 of 100
did not; they are taken from buckets, and at most 25 % off. MAX is exact. WAIT is the part of the
latency before the code was sent to its session.
"""

_EPILOG_OF_METRICS = """\
docs/reference/metrics.md says what each of them means, and how Prometheus gets them.

examples:
  nsm status metrics | grep ^nsm_sessions
  nsm status metrics > /var/lib/prometheus/node-exporter/nsm.prom
"""


def parser() -> Parser:
    """The verb's options."""
    parser = Parser(
        "status",
        "Show the supervisor's version, process, socket and counts. Starts none.",
        "Without an ACTION it exits 1 when no supervisor runs.",
    )
    told = "one object, or null when no supervisor runs,"
    parser.add_json(told)
    actions = parser.add_actions(required=False)
    pool = actions.add(
        "pool", "show the sessions that are kept ready, and why so many", _EPILOG_OF_POOL
    )
    pool.add_json(told)
    times = actions.add("times", "show how long things take", _EPILOG_OF_TIMES)
    times.add_json(told)
    metrics = actions.add(
        "metrics", "print all that is counted, for Prometheus", _EPILOG_OF_METRICS
    )
    metrics.add_argument(
        "--openmetrics", action="store_true", help="print the format OpenMetrics 1.0"
    )
    return parser


def main(arguments: list[str]) -> int:
    """Show."""
    verb = parser()
    options = verb.parse_args(verb.action_first(arguments))
    return _ACTIONS[options.action](options)


def _show(options: argparse.Namespace) -> int:
    client = connection.connect(options)
    if client is None:
        return EXIT_FAILED
    with client:
        status = client.status()
    terminal.answer(options, status, lambda: status_lines(status))
    return EXIT_OK


def _pool(options: argparse.Namespace) -> int:
    client = connection.connect(options)
    if client is None:
        return EXIT_OK
    with client:
        report = client.pool()
    home = os.path.expanduser("~")
    terminal.answer(options, report, lambda: pool_table(report, home, terminal.width()))
    return EXIT_OK


def _times(options: argparse.Namespace) -> int:
    client = connection.connect(options)
    if client is None:
        return EXIT_OK
    with client:
        wire = client.call("stats")
    from nsm.wire.telemetry import Stats  # noqa: PLC0415  # of this action alone

    stats = read(Stats, wire)
    terminal.answer(options, stats, lambda: times_tables(stats, terminal.width()))
    return EXIT_OK


def _metrics(options: argparse.Namespace) -> int:
    client = connection.connect()
    if client is None:
        return EXIT_FAILED
    with client:
        wire = client.call("metrics", {"accept": _OPENMETRICS} if options.openmetrics else {})
    from nsm.wire.telemetry import metrics_text  # noqa: PLC0415  # of this action alone

    terminal.out(metrics_text(wire).removesuffix("\n"))
    return EXIT_OK


_ACTIONS: dict[str | None, Callable[[argparse.Namespace], int]] = {
    None: _show,
    "pool": _pool,
    "times": _times,
    "metrics": _metrics,
}
