"""`nsm jobs`: the jobs of sessions."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

from nsm.cli import connection, targets, terminal
from nsm.cli.options import EXIT_OK, Parser
from nsm.cli.render.sessions import jobs_table
from nsm.wire.errors import SessionEndedError, UnknownOperationError, UnknownSessionError

if TYPE_CHECKING:
    from nsm.cli.render.sessions import SessionJobs
    from nsm.client.blocking import Client


def parser() -> Parser:
    """The verb's options."""
    parser = Parser(
        "jobs",
        "List and stop jobs: programs that run in sessions. Starts no supervisor.",
        "`nsm exec`, Python clients and models start jobs. Jobs that have ended are listed, too:\n"
        "the last 1000 of each session. `nsm attach SESSION --job ID` shows the output of a job.",
    )
    parser.add_argument(
        "session", nargs="?", metavar="SESSION", help="an id, a name, or SCOPE/NAME; else all"
    )
    parser.add_argument("-r", "--running", action="store_true", help="only those that run")
    parser.add_argument(
        "--stop", metavar="ID", help="stop that job: interrupt it, then SIGTERM, then kill it"
    )
    parser.add_json("an array of objects")
    return parser


def main(arguments: list[str]) -> int:
    """List."""
    verb = parser()
    options = verb.parse_args(arguments)
    session: str | None = options.session
    if options.stop is not None and session is None:
        verb.error("--stop needs the session of the job")
    client = connection.connect(options, "[]")
    if client is None:
        return EXIT_OK
    with client:
        if session is not None:
            targets.tell(client, session)
            if options.stop is not None:
                info = client.job(session, options.stop).stop()
                terminal.out(f"ended job {info.id}")
                return EXIT_OK
        found = _jobs(client, session, running=options.running)
    rows = [
        {"session": each.id, "name": each.name, **job._asdict()}
        for each in found
        for job in each.jobs
    ]
    terminal.answer(options, rows, lambda: jobs_table(found, terminal.width()))
    return EXIT_OK


def _jobs(client: Client, target: str | None, *, running: bool) -> list[SessionJobs]:
    from nsm.cli.render.sessions import SessionJobs  # noqa: PLC0415  # checkers want it above, too

    found: list[SessionJobs] = []
    if target is not None:
        meant = targets.find(client, target)
        sessions = [
            (target if meant is None else meant.id, target if meant is None else meant.name)
        ]
    else:
        sessions = [(row.id, row.name) for row in client.sessions()]
    for id_, name in sessions:
        gone = (
            ()
            if target is not None
            else (UnknownSessionError, SessionEndedError, UnknownOperationError)
        )
        with suppress(*gone):
            jobs = [job for job in client.jobs(id_) if job.running or not running]
            found.append(SessionJobs(id_, name, jobs))
    return found
