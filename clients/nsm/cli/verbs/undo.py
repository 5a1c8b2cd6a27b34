"""`nsm undo`: take back the last calls of a session."""

from __future__ import annotations

import argparse

from nsm.cli import targets, terminal
from nsm.cli.options import Parser
from nsm.cli.verbs.run import exit_code
from nsm.client.blocking import Client


def parser() -> Parser:
    """The verb's options."""
    parser = Parser(
        "undo",
        "Take back the last calls of a Python session: its variables, working directory and files "
        "are then as they were before. Needs `undo` in [session] of config.toml.",
        "Exits 0 when it is done, 1 when nothing was undone; what cannot be taken back is printed.",
    )
    parser.add_session()
    parser.add_argument(
        "calls", nargs="?", type=_count, default=1, metavar="N", help="how many calls (1)"
    )
    parser.add_argument("--json", action="store_true", help="print the result as JSON")
    return parser


def main(arguments: list[str]) -> int:
    """Undo."""
    options = parser().parse_args(arguments)
    with Client(autostart=False) as client:
        targets.tell(client, options.session)
        result = client.undo(options.session, options.calls)
    if options.json:
        terminal.out_json(result)
    else:
        terminal.out(result.stdout.rstrip("\n"))
        for line in result.stderr.splitlines():
            terminal.note(line)
        for note in result.notes:
            terminal.note(note)
    return exit_code(result)


def _count(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of calls")
    return int(text)
