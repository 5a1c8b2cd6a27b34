"""`nsm tree`: sessions and saves, and which was made of which."""

from __future__ import annotations

import sys
from contextlib import suppress

from nsm.cli import connection, terminal
from nsm.cli.options import EXIT_OK, Parser
from nsm.cli.render.saves import ASCII_BRANCHES, BRANCHES, forest, tree_text
from nsm.saves import kept

_EPILOG = """\
A save (`nsm save`) is below its session, a session that was restored is below its save, and a fork
(`nsm fork`) below its original.
`nsm ps` tells more of sessions, `nsm save ls` lists saves only. Starts no supervisor.
"""


def parser() -> Parser:
    """The verb's options."""
    parser = Parser("tree", "Show sessions and saves as a tree.", _EPILOG)
    parser.add_json("an array of objects, each with its children,")
    return parser


def main(arguments: list[str]) -> int:
    """Show the tree."""
    options = parser().parse_args(arguments)
    rows = []
    if (client := connection.connect()) is not None:
        with client:
            rows = client.sessions()
    nodes = forest(rows, kept.listed())
    terminal.answer(options, nodes, lambda: tree_text(nodes, terminal.width(), _branches()))
    return EXIT_OK


def _branches() -> tuple[str, str, str]:
    with suppress(UnicodeEncodeError, LookupError):
        "".join(BRANCHES).encode(sys.stdout.encoding)
        return BRANCHES
    return ASCII_BRANCHES
