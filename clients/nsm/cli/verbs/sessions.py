"""Verbs about live sessions as a whole: `ps`, `inspect`, `interrupt`, `undo`, `fork`, `kill`."""

from __future__ import annotations

import argparse
import os
from typing import TYPE_CHECKING

from nsm.cli import connection, terminal
from nsm.cli import options as cli
from nsm.cli.render.sessions import ended_table, killed_lines, sessions_table
from nsm.client.blocking import Client
from nsm.wire.errors import NsmError
from nsm.wire.sessions import KillError, KillReport

if TYPE_CHECKING:
    from argparse import Namespace
    from collections.abc import Sequence

    from nsm.wire.sessions import ForkReport, SessionRow
    from nsm.wire.transcripts import EndedRow

SORTS = ("age", "client", "cpu", "env", "idle", "memory", "name", "processes", "runs", "state")
"""Columns to sort by; `cpu` is the time used so far."""


@cli.verb(
    "ps",
    "List the live sessions. Starts no supervisor.",
    "Of sessions that have ended, `nsm logs ID` shows what was run in them.\n"
    "`nsm top` watches them: processor shares, rates.",
    cli.flag("-a --all", "also list ended sessions, and why they ended"),
    cli.value("-s --sort COLUMN", f"{', '.join(SORTS)}; else by age", choices=SORTS),
    cli.labels("only sessions with this label; may be repeated, and then all must match"),
    cli.ALL_HOSTS,
    cli.as_json("an array of objects; with --all an object of two arrays,"),
)
def _ps(options: Namespace) -> int:
    if options.all_hosts:
        if options.all:
            raise cli.UsageError("--all-hosts lists live sessions, and --all those that have ended")
        return _ps_of_all_hosts(options)
    ended: list[EndedRow] = []
    with connection.running(
        options, '{"sessions": [], "ended": []}' if options.all else "[]"
    ) as client:
        rows = client.sessions()
        if options.all:
            ended = client.ended_sessions()
        connection.note_hidden(client)
    if options.label:
        ended = []
    rows = _chosen(rows, options)
    if options.json:
        terminal.out_json({"sessions": rows, "ended": ended} if options.all else rows)
        return cli.EXIT_OK
    terminal.out(sessions_table(rows, os.path.expanduser("~"), terminal.width()))
    if ended:
        terminal.out("\n" + ended_table(ended, terminal.width()))
    return cli.EXIT_OK


def _ps_of_all_hosts(options: Namespace) -> int:
    from nsm.cli.all_hosts import HostClients, shown  # noqa: PLC0415  # of one option

    hosts: dict[int, str] = {}
    rows: list[SessionRow] = []
    clients = HostClients()
    for host, client in clients:
        found = client.sessions()
        rows += found
        hosts |= {id(row): shown(host) for row in found}
    rows = _chosen(rows, options)
    places = [hosts[id(row)] for row in rows]
    if options.json:
        told = zip(places, rows, strict=True)
        terminal.out_json([{"host": place, **row._asdict()} for place, row in told])
    else:
        terminal.out(sessions_table(rows, os.path.expanduser("~"), terminal.width(), places))
    return clients.code


def _chosen(rows: Sequence[SessionRow], options: Namespace) -> list[SessionRow]:
    """Choose the sessions that have the wanted labels, and sort them."""
    chosen = [row for row in rows if dict(options.label).items() <= row.labels.items()]
    if options.sort is None:
        return chosen
    from nsm.cli.top.board import Line, ordered  # noqa: PLC0415  # rarely needed

    lines = [Line(row, None, None) for row in chosen]
    return [line.row for line in ordered(lines, "time" if options.sort == "cpu" else options.sort)]


@cli.verb(
    "inspect",
    "Show everything about a session: its rules, its life, its processes, what it has run.",
    "Rules are what it sees, changes, reaches and uses, and what enforces that. Code finds\n"
    "them in /run/nsm/policy.json, without paths of the host.\n"
    "Of a session that has ended, it shows why, and what it ran last.\n"
    "Exits 1 when the session is unknown.",
    cli.SESSION,
    cli.ALL_HOSTS,
    cli.as_json("one object"),
)
def _inspect(options: Namespace) -> None:
    from nsm.cli.render.inspection import inspection  # noqa: PLC0415  # of one verb

    host, name = None, ""
    if options.all_hosts:
        from nsm.cli.all_hosts import host_with, shown  # noqa: PLC0415  # of one option

        host = host_with(options.session)
        name = shown(host)
    with connection.client_of(options.session, host=host) as client:
        found = client.inspect(options.session)
    if options.json:
        terminal.out_json({**({"host": name} if name else {}), **found._asdict()})
        return
    if name:
        terminal.out(f"host         {name}")
    terminal.out(inspection(found, os.path.expanduser("~")))


@cli.verb(
    "interrupt",
    "Interrupt the code that runs in a session, as Ctrl-C would. Its state is kept.",
    "Exits 0 also when nothing ran, 1 when the session is unknown.",
    cli.SESSION,
)
def _interrupt(options: Namespace) -> None:
    with connection.client_of(options.session) as client:
        if not client.interrupt(options.session):
            terminal.note("nothing was running")


def _number_of_calls(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of calls")
    return int(text)


@cli.verb(
    "undo",
    "Take back the last calls of a Python session: its variables, working directory and files "
    "are then as they were before. Needs `undo` in [session] of config.toml.",
    "Exits 0 when it is done, 1 when nothing was undone; what cannot be taken back is printed.",
    cli.SESSION,
    cli.operand("[N]", "how many calls (1)", _number_of_calls, dest="calls", default=1),
    cli.as_json("the result"),
)
def _undo(options: Namespace) -> int:
    from nsm.cli.render.results import exit_code  # noqa: PLC0415  # of one verb

    with connection.client_of(options.session) as client:
        result = client.undo(options.session, options.calls)
    if options.json:
        terminal.out_json(result)
    else:
        terminal.out(result.stdout.rstrip("\n"))
        for note in (*result.stderr.splitlines(), *result.notes):
            terminal.note(note)
    return exit_code(result)


_EPILOG_OF_FORK = """\
A fork has the variables, functions, open files, working directory and environment variables of a
running Python or Bash session, and copies of /workspace and /tmp. Original and forks go their own
ways from then on, each with its own processes, limits and transcript. A fork ends with its
original.

The session must be idle. Jobs that run in it stay with the original. Pipes and connections are
closed in the forks. Both are listed here. Sessions with threads, GPU or shared memory, programs
that have started others, sessions of container images, and Node sessions are refused, and go on as
before; `nsm save` and `nsm restore` may help.

examples:
  nsm fork analysis
  nsm fork analysis try-a try-b
  nsm fork analysis -n 5
"""


@cli.verb(
    "fork",
    "Make copies of a running Python or Bash session.",
    _EPILOG_OF_FORK,
    cli.SESSION,
    cli.operand("[NEW ...]", "names of the forks", dest="names"),
    cli.value("-n --count N", "number of forks (default: 1)", cli.whole_number),
    cli.as_json("the forks, and what they do not have"),
)
def _fork(options: Namespace) -> None:
    if options.count == 0:
        raise cli.UsageError("argument -n/--count: 0 is too few; N is 1 or more")
    with connection.client_of(options.session) as client:
        report = client.fork(options.session, *options.names, count=options.count)
    terminal.answer(options, report, lambda: _forks_text(report))


def _forks_text(report: ForkReport) -> str:
    lines = [f"{fork.name} ({fork.id})" for fork in report.forks]
    if report.closed:
        lines.append(f"not in the forks: {', '.join(report.closed)}")
    return "\n".join(lines)


@cli.verb(
    "kill",
    "End sessions, with everything that runs in them. Starts no supervisor.",
    "A name means a session of this project. If only another project has one of that name,\n"
    "you are asked; where nobody can be asked, it is left alone.\n"
    "Exits 1 when one of the sessions is unknown or ambiguous, or was left alone; with --all\n"
    "also when there may be more, as a process that keeps sessions does not answer.",
    cli.operand("[SESSION ...]", "an id, a name, or SCOPE/NAME", dest="sessions"),
    cli.flag("--all", "every session"),
    cli.value("--idle SECONDS", "sessions idle for that long or longer", cli.seconds),
    cli.labels("sessions with this label; may be repeated, and then all must match"),
    cli.ALL_HOSTS,
    cli.YES,
    cli.as_json("an array of the sessions that were ended"),
)
def _kill(options: Namespace) -> int:
    given = [bool(options.sessions), options.all, options.idle is not None, bool(options.label)]
    if given.count(True) != 1:
        raise cli.UsageError(
            "say which sessions: their ids or names, --all, --idle SECONDS, or --label NAME=VALUE"
        )
    if options.all_hosts:
        return _kill_on_all_hosts(options)
    with connection.running(options, "[]") as client:
        report = _killed(client, options)
        may_be_more = options.all and report is not None and connection.note_hidden(client)
    if report is None:
        return cli.EXIT_FAILED
    terminal.answer(options, report.killed, lambda: killed_lines(report.killed))
    for failed in report.errors:
        terminal.report(failed.error)
    return cli.EXIT_FAILED if report.errors or may_be_more else cli.EXIT_OK


def _kill_on_all_hosts(options: Namespace) -> int:
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
        code = cli.EXIT_OK
    else:
        clients = HostClients()
        asked = [(host, _killed(client, options)) for host, client in clients]
        reports = [(shown(host), report) for host, report in asked if report is not None]
        code = clients.code if len(reports) == len(asked) else cli.EXIT_FAILED
    if options.json:
        rows = [(host, row) for host, report in reports for row in report.killed]
        terminal.out_json([{"host": host, **row._asdict()} for host, row in rows])
    for host, report in reports:
        if report.killed and not options.json:
            lines = killed_lines(report.killed).splitlines()
            terminal.out("\n".join(f"{host}: {line}" for line in lines))
        for failed in report.errors:
            terminal.report(failed.error)
            code = cli.EXIT_FAILED
    return code


def _killed(client: Client, options: Namespace) -> KillReport | None:
    asks = terminal.may_ask() and not options.json
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
            target = connection.agreed(client, session, "End it?", may_ask=asks, yes=options.yes)
        except NsmError as error:
            left.append(KillError(session, error))
        else:
            if target is None:
                left.append(KillError(session, NsmError(f"{session} was left alone")))
            else:
                chosen.append(target)
    report = client.kill(chosen) if chosen else KillReport((), ())
    return report._replace(errors=(*left, *report.errors))
