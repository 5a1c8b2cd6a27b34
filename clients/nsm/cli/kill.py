"""`nsm kill`: end sessions."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nsm.cli import render, running, terminal
from nsm.cli.options import EXIT_FAILED, EXIT_OK, Parser, seconds

if TYPE_CHECKING:
    import argparse

    from nsm.client import Client
    from nsm.wire.live import KillReport


def parser() -> Parser:
    """The verb's options."""
    parser = Parser(
        "kill",
        "End sessions, with everything that runs in them. Starts no supervisor.",
        "Exits 1 when one of the sessions is unknown or ambiguous.",
    )
    parser.add_argument(
        "sessions", nargs="*", metavar="SESSION", help="an id, a name, or SCOPE/NAME"
    )
    parser.add_argument("--all", action="store_true", help="every session")
    parser.add_argument(
        "--idle", type=seconds, metavar="SECONDS", help="sessions idle for that long or longer"
    )
    parser.add_json("an array of the sessions that were ended")
    return parser


def main(arguments: list[str]) -> int:
    """End sessions."""
    verb = parser()
    options = verb.parse_args(arguments)
    if [bool(options.sessions), options.all, options.idle is not None].count(True) != 1:
        verb.error("say which sessions: their ids or names, --all, or --idle SECONDS")
    client = running.connect()
    if client is None:
        terminal.out("[]" if options.json else "")
        return EXIT_OK
    with client:
        report = _kill(client, options)
    if options.json:
        terminal.out_json([session._asdict() for session in report.killed])
    else:
        terminal.out(render.killed(report.killed))
    for failed in report.errors:
        terminal.report(failed.error)
    return EXIT_FAILED if report.errors else EXIT_OK


def _kill(client: Client, options: argparse.Namespace) -> KillReport:
    if options.all:
        return client.kill_all()
    if options.idle is not None:
        return client.kill_idle(options.idle)
    return client.kill(options.sessions)
