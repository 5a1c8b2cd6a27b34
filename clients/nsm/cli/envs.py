"""`nsm envs`: what there is to run code in."""

from __future__ import annotations

import os

from nsm.cli import render, terminal
from nsm.cli.options import EXIT_OK, Parser
from nsm.client import Client


def parser() -> Parser:
    """The verb's options."""
    parser = Parser(
        "envs",
        "List the environments, also those that cannot be used here, with the reason.",
        "LIMIT is the default and the upper limit of one run.",
    )
    parser.add_json("an array of objects")
    return parser


def main(arguments: list[str]) -> int:
    """List."""
    options = parser().parse_args(arguments)
    with Client() as client:
        rows = client.envs()
    if options.json:
        terminal.out_json([row._asdict() for row in rows])
    else:
        terminal.out(render.environments(rows, os.path.expanduser("~")))
    return EXIT_OK
