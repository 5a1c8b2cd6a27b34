"""`nsm ps`: the sessions."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from nsm.cli import connection, terminal
from nsm.cli.options import EXIT_OK, Parser, add_all_hosts
from nsm.cli.render.sessions import ended_table, sessions_table

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence

    from nsm.wire.sessions import SessionRow
    from nsm.wire.transcripts import EndedRow

SORTS = ("age", "client", "cpu", "env", "idle", "memory", "name", "processes", "runs", "state")
"""Columns to sort by; `cpu` is the time used so far."""


def parser() -> Parser:
    """The verb's options."""
    parser = Parser(
        "ps",
        "List the live sessions. Starts no supervisor.",
        "Of sessions that have ended, `nsm logs ID` shows what was run in them.\n"
        "`nsm top` watches them: processor shares, rates.",
    )
    parser.add_argument(
        "-a", "--all", action="store_true", help="also list ended sessions, and why they ended"
    )
    parser.add_argument(
        "-s", "--sort", choices=SORTS, metavar="COLUMN", help=f"{', '.join(SORTS)}; else by age"
    )
    parser.add_labels("only sessions with this label; may be repeated, and then all must match")
    add_all_hosts(parser)
    parser.add_json("an array of objects; with --all an object of two arrays,")
    return parser


def main(arguments: list[str]) -> int:
    """List."""
    verb = parser()
    options = verb.parse_args(arguments)
    if options.all_hosts:
        if options.all:
            verb.error("--all-hosts lists live sessions, and --all those that have ended")
        return _all_hosts(options)
    client = connection.connect(options, '{"sessions": [], "ended": []}' if options.all else "[]")
    if client is None:
        return EXIT_OK
    ended: list[EndedRow] = []
    with client:
        rows: Sequence[SessionRow] = client.sessions()
        if options.all:
            ended = client.ended_sessions()
        connection.note_hidden(client)
    if options.label:
        rows = [row for row in rows if dict(options.label).items() <= row.labels.items()]
        ended = []
    if options.sort is not None:
        rows = _sorted(rows, options.sort)
    if options.json and options.all:
        terminal.out_json({"sessions": rows, "ended": ended})
    elif options.json:
        terminal.out_json(rows)
    else:
        terminal.out(sessions_table(rows, os.path.expanduser("~"), terminal.width()))
    if ended and not options.json:
        terminal.out("\n" + ended_table(ended, terminal.width()))
    return EXIT_OK


def _all_hosts(options: argparse.Namespace) -> int:
    from nsm.cli.all_hosts import HostClients, shown  # noqa: PLC0415  # of one option

    hosts: dict[int, str] = {}
    rows: list[SessionRow] = []
    clients = HostClients()
    for host, client in clients:
        found = client.sessions()
        rows += found
        hosts |= {id(row): shown(host) for row in found}
    rows = [row for row in rows if dict(options.label).items() <= row.labels.items()]
    if options.sort is not None:
        rows = _sorted(rows, options.sort)
    places = [hosts[id(row)] for row in rows]
    if options.json:
        told = zip(places, rows, strict=True)
        terminal.out_json([{"host": place, **row._asdict()} for place, row in told])
    else:
        terminal.out(sessions_table(rows, os.path.expanduser("~"), terminal.width(), places))
    return clients.code


def _sorted(rows: Sequence[SessionRow], by: str) -> list[SessionRow]:
    from nsm.cli.top.figures import Line, ordered  # noqa: PLC0415  # rarely needed

    lines = [Line(row, None, None) for row in rows]
    return [line.row for line in ordered(lines, "time" if by == "cpu" else by)]
