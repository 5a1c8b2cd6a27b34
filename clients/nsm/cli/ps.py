"""`nsm ps`: the live sessions."""

from __future__ import annotations

import os

from nsm.cli import render, running, terminal
from nsm.cli.options import EXIT_OK, Parser


def parser() -> Parser:
    """The verb's options."""
    parser = Parser("ps", "List the live sessions. Starts no supervisor.")
    parser.add_json("an array of objects")
    return parser


def main(arguments: list[str]) -> int:
    """List."""
    options = parser().parse_args(arguments)
    client = running.connect()
    if client is None:
        terminal.out("[]" if options.json else "")
        return EXIT_OK
    with client:
        rows = client.sessions()
    if options.json:
        terminal.out_json([row._asdict() for row in rows])
    else:
        terminal.out(render.sessions(rows, os.path.expanduser("~")))
    return EXIT_OK
