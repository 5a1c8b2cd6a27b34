"""`nsm status pool`: the sessions that are kept ready, and why so many."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from nsm.cli import connection, terminal
from nsm.cli.options import EXIT_OK, Parser
from nsm.cli.render.supervisor import pool_table

if TYPE_CHECKING:
    import argparse


def parser() -> Parser:
    """The verb's options."""
    parser = Parser(
        "status pool",
        "Show the sessions that are kept ready, and why so many. Starts no supervisor.",
        "HITS were there when asked for, MISSES had to be started first.\n"
        "REFILL is what a start takes, P95 what at most 5 of 100 exceed.",
    )
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
        report = client.pool()
    terminal.answer(
        options,
        report,
        lambda: pool_table(report, os.path.expanduser("~"), terminal.width()),
    )
    return EXIT_OK
