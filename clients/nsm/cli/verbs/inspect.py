"""`nsm inspect`: all that is known of a session, its rules included."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from nsm.cli import targets, terminal
from nsm.cli.options import EXIT_OK, Parser, add_all_hosts
from nsm.cli.render.inspection import inspection
from nsm.client.blocking import Client

if TYPE_CHECKING:
    from collections.abc import Sequence


def parser() -> Parser:
    """The verb's options."""
    parser = Parser(
        "inspect",
        "Show all that is known of a session: its rules, its life, its processes, what it has run.",
        "Rules are what it sees, changes, reaches and uses, and what keeps it to that; code in it\n"
        "finds the same in /run/nsm/policy.json, host paths left out.\n"
        "Of a session that has ended, it shows why, and what it ran last.\n"
        "Exits 1 when the session is unknown.",
    )
    parser.add_session()
    add_all_hosts(parser)
    parser.add_json("one object")
    return parser


def main(arguments: Sequence[str]) -> int:
    """Show."""
    options = parser().parse_args(arguments)
    host, name = None, ""
    if options.all_hosts:
        from nsm.cli.all_hosts import host_with, shown  # noqa: PLC0415  # of one option

        host = host_with(options.session)
        name = shown(host)
    with Client(autostart=False, host=host) as client:
        targets.tell(client, options.session)
        found = client.inspect(options.session)
    if name and options.json:
        terminal.out_json({"host": name, **found._asdict()})
        return EXIT_OK
    if name:
        terminal.out(f"host         {name}")
    terminal.answer(options, found, lambda: inspection(found, os.path.expanduser("~")))
    return EXIT_OK
