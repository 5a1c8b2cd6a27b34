"""`nsm status metrics`: what the supervisor counts, as Prometheus reads it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nsm.cli import connection, terminal
from nsm.cli.options import EXIT_FAILED, EXIT_OK, Parser

if TYPE_CHECKING:
    import argparse

_OPENMETRICS = "application/openmetrics-text; version=1.0.0"

_EPILOG = """\
docs/reference/metrics.md says what each of them means, and how Prometheus gets them.

examples:
  nsm status metrics | grep ^nsm_sessions
  nsm status metrics > /var/lib/prometheus/node-exporter/nsm.prom
"""


def parser() -> Parser:
    """The verb's options."""
    parser = Parser(
        "status metrics",
        "Print what the supervisor counts, as Prometheus reads it. Starts no supervisor.",
        _EPILOG,
    )
    parser.add_argument(
        "--openmetrics", action="store_true", help="print the format OpenMetrics 1.0"
    )
    return parser


def main(arguments: list[str]) -> int:
    """Print."""
    return show(parser().parse_args(arguments))


def show(options: argparse.Namespace) -> int:
    """Print, with parsed options."""
    client = connection.connect()
    if client is None:
        return EXIT_FAILED
    with client:
        wire = client.call("metrics", {"accept": _OPENMETRICS} if options.openmetrics else {})
    from nsm.wire.telemetry import metrics_text  # noqa: PLC0415  # not for --help

    terminal.out(metrics_text(wire).removesuffix("\n"))
    return EXIT_OK
