"""`nsm kill`: end sessions."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nsm.cli import connection, targets, terminal
from nsm.cli.confirm import may_ask
from nsm.cli.options import EXIT_FAILED, EXIT_OK, Parser, add_all_hosts, seconds
from nsm.cli.render.sessions import killed_lines
from nsm.client.blocking import Client
from nsm.wire.errors import NsmError
from nsm.wire.sessions import KillError, KillReport

if TYPE_CHECKING:
    import argparse


def parser() -> Parser:
    """The verb's options."""
    parser = Parser(
        "kill",
        "End sessions, with everything that runs in them. Starts no supervisor.",
        "A name means a session of this project. If only another project has one of that name,\n"
        "you are asked; where nobody can be asked, it is left alone.\n"
        "Exits 1 when one of the sessions is unknown or ambiguous, or was left alone; with --all\n"
        "also when there may be more, as a process that keeps sessions does not answer.",
    )
    parser.add_argument(
        "sessions", nargs="*", default=[], metavar="SESSION", help="an id, a name, or SCOPE/NAME"
    )
    parser.add_argument("--all", action="store_true", help="every session")
    parser.add_argument(
        "--idle", type=seconds, metavar="SECONDS", help="sessions idle for that long or longer"
    )
    parser.add_labels("sessions with this label; may be repeated, and then all must match")
    add_all_hosts(parser)
    parser.add_yes()
    parser.add_json("an array of the sessions that were ended")
    return parser


def main(arguments: list[str]) -> int:
    """End sessions."""
    verb = parser()
    options = verb.parse_args(arguments)
    given = [bool(options.sessions), options.all, options.idle is not None, bool(options.label)]
    if given.count(True) != 1:
        verb.error(
            "say which sessions: their ids or names, --all, --idle SECONDS, or --label NAME=VALUE"
        )
    if options.all_hosts:
        return _all_hosts(options)
    client = connection.connect(options, "[]")
    if client is None:
        return EXIT_OK
    with client:
        report = _kill(client, options)
        may_be_more = options.all and report is not None and connection.note_hidden(client)
    if report is None:
        return EXIT_FAILED
    terminal.answer(
        options,
        report.killed,
        lambda: killed_lines(report.killed),
    )
    for failed in report.errors:
        terminal.report(failed.error)
    return EXIT_FAILED if report.errors or may_be_more else EXIT_OK


def _all_hosts(options: argparse.Namespace) -> int:
    from nsm.cli.all_hosts import HostClients, host_with, shown  # noqa: PLC0415  # of one option

    if options.sessions:
        reports: list[tuple[str, KillReport]] = []
        for session in options.sessions:
            try:
                host = host_with(session)
                with Client(host=host, autostart=False) as client:
                    reports.append((shown(host), client.kill([session])))
            except NsmError as error:
                reports.append(("", KillReport((), (KillError(session, error),))))
        code = EXIT_OK
    else:
        clients = HostClients()
        asked = [(host, _kill(client, options)) for host, client in clients]
        reports = [(shown(host), report) for host, report in asked if report is not None]
        code = clients.code if len(reports) == len(asked) else EXIT_FAILED
    if options.json:
        rows = [(host, row) for host, report in reports for row in report.killed]
        terminal.out_json([{"host": host, **row._asdict()} for host, row in rows])
    for host, report in reports:
        if report.killed and not options.json:
            lines = killed_lines(report.killed).splitlines()
            terminal.out("\n".join(f"{host}: {line}" for line in lines))
        for failed in report.errors:
            terminal.report(failed.error)
            code = EXIT_FAILED
    return code


def _kill(client: Client, options: argparse.Namespace) -> KillReport | None:
    asks = may_ask() and not options.json
    if options.all:
        if asks and not options.yes and not connection.agreed_to_end(client):
            return None
        return client.kill_all()
    if options.idle is not None:
        return client.kill_idle(options.idle)
    if options.label:
        return client.kill_labelled(dict(options.label))
    chosen: list[str] = []
    left: list[KillError] = []
    for session in options.sessions:
        try:
            target = targets.agreed(client, session, "End it?", may_ask=asks, yes=options.yes)
        except NsmError as error:
            left.append(KillError(session, error))
        else:
            if target is None:
                left.append(KillError(session, NsmError(f"{session} was left alone")))
            else:
                chosen.append(target)
    report = client.kill(chosen) if chosen else KillReport((), ())
    return report._replace(errors=(*left, *report.errors))
