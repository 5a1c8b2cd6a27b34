"""`nsm exec` and `nsm jobs`: programs that run in a session, beside its interpreter."""

from __future__ import annotations

import argparse
import sys
from contextlib import suppress
from typing import TYPE_CHECKING

from nsm.cli import connection, terminal
from nsm.cli import options as cli
from nsm.client.blocking import Client
from nsm.client.places import DEFAULT, project_of, why_no_project
from nsm.wire.errors import (
    JobError,
    NsmError,
    SessionEndedError,
    UnknownOperationError,
    UnknownSessionError,
)

if TYPE_CHECKING:
    from argparse import Namespace

    from nsm.cli.options import Parser
    from nsm.cli.render.sessions import SessionJobs

EXIT_NOT_EXECUTABLE, EXIT_NOT_FOUND = 126, 127
"""The exit codes of a shell for these two."""


_EPILOG = """\
The program is a job of the session: it runs beside the session's interpreter, sees the same files
and the same network, and ends with the session. No shell reads its arguments; for a line of shell,
use `sh -c 'LINE'`. If there is no such session, it is made, as by `nsm run -s`.

The program gets this command's standard input; with --no-stdin or -d it gets none. Ctrl-C
interrupts the program. The third Ctrl-C ends this command and not the program: `nsm attach SESSION
--job ID` comes back to it.

With --tty, the program has a terminal of the size of this one, and gets every key. Press Ctrl-]
three times within a second to leave; the program goes on.

exit codes:
  the program's own, 128+n if signal n has ended it, else
  124  it was stopped at its time limit
  125  nsm could not start it
  126  it is not executable
  127  there is no such program
  130  you left it with Ctrl-C; 0 with Ctrl-]
  2    wrong usage

examples:
  nsm exec work -- ls -l /project
  nsm exec work -e bash -d -- python3 -m http.server 8000
  nsm exec work --tty -- bash
  tar c src | nsm exec work -- tar x
"""


def _parse(verb: Parser, arguments: list[str]) -> Namespace:
    """The options; what follows the first `--` is the program's, else what follows the session."""
    argv: list[str] | None = None
    if "--" in arguments:
        place = arguments.index("--")
        arguments, argv = arguments[:place], arguments[place + 1 :]
        options = verb.parse_args(_session_last(verb, arguments))
        if options.argv:
            verb.error(f"the program comes after `--`: {' '.join(options.argv)}")
        options.argv = argv
    else:
        options = verb.parse_args(arguments)
    if argv is None and options.argv[:1] and options.argv[0].startswith("-"):
        verb.error(
            f"{options.argv[0]} follows the session, so it would be the program: put options "
            "before the session, or `--` before the program"
        )
    if not options.argv:
        verb.error("no program: `nsm exec SESSION -- PROGRAM ARGUMENTS`")
    if options.project_mode is not None and options.no_project:
        verb.error("--project-mode needs a project: leave out --no-project")
    if options.tty and not options.detach and not (sys.stdin and sys.stdin.isatty()):
        verb.error("--tty needs a terminal to read from; leave it out for pipes")
    return options


def _session_last(verb: Parser, arguments: list[str]) -> list[str]:
    """The arguments with the session behind the options: what follows it would be the program's."""
    values = verb.options()
    options: list[str] = []
    words: list[str] = []
    rest = iter(arguments)
    for word in rest:
        if not word.startswith("-") or word == "-":
            words.append(word)
            continue
        options.append(word)
        if values.get(word) is not None:
            options += [value for value in [next(rest, None)] if value is not None]
    return [*options, *words]


@cli.verb(
    "exec",
    "Start a program in a session, and wait for its end.",
    _EPILOG,
    cli.operand("SESSION", "a name, an id, or SCOPE/NAME; `new`: a fresh name"),
    cli.operand("PROGRAM", "the program and its arguments", dest="argv", nargs=argparse.REMAINDER),
    cli.group(
        "how it runs",
        cli.flag("--tty", "give it a terminal"),
        cli.flag("-d --detach", "print the job's id, and do not wait for it"),
        cli.flag("--no-stdin", "give it no input"),
        cli.value("-w --cwd DIR", "its working directory in the session"),
        cli.repeated(
            "--var NAME=VALUE",
            "set a variable of its environment; may be repeated",
            cli.name_and_value,
        ),
        cli.value("-t --timeout SECONDS", "time limit; none if not given", cli.seconds),
    ),
    cli.group(
        "a session that has to be made",
        cli.value(
            "-e --env ENV",
            "its environment, see `nsm env`; else that of [defaults] in config.toml, or bash",
        ),
        cli.project("mount DIR, not the current directory"),
        cli.value(
            "--project-mode MODE",
            "readonly, or overlay: programs may change the project, in a copy",
            choices=["readonly", "overlay"],
        ),
        cli.network("what it may reach: off, full, or hosts separated by commas"),
        cli.secrets("a secret that a new session uses and does not see"),
    ),
    usage="nsm exec [OPTIONS] SESSION [--] PROGRAM [ARGUMENT ...]",
    parse=_parse,
    failure=cli.EXIT_RUN_FAILED,
)
def _exec(options: Namespace) -> int:
    from nsm.cli.foreground import Foreground, size_of  # noqa: PLC0415  # help does without
    from nsm.client.standard_input import check_readable  # noqa: PLC0415  # likewise

    given = options.project or (None if options.no_project else DEFAULT)
    reads_input = bool(sys.stdin) and not options.no_stdin and not options.detach
    if reads_input:
        check_readable(sys.stdin.fileno())
    with Client(project=given) as client:
        try:
            job = client.exec(
                options.session,
                options.argv,
                env=options.env or "",
                cwd=options.cwd,
                environ=dict(options.var),
                stdin=reads_input,
                tty=size_of(0) if options.tty else None,
                timeout_s=options.timeout,
                project=given,
                project_mode=options.project_mode,
                network=options.network,
                secrets=options.secrets,
            )
        except JobError as error:
            return terminal.report(error, _exit_code(error))
        where = job.started
        if where is not None and where.created:
            seen = project_of(given)
            if seen.path is None and not seen.chosen:
                terminal.note(f"no project is mounted: {why_no_project()}")
            if options.session == "new":
                terminal.note(f"session {where.name}")
        if options.detach:
            terminal.out(job.id)
            return cli.EXIT_OK
        return Foreground(job, tty=options.tty, reads_input=reads_input).run()


def _exit_code(error: JobError) -> int:
    match error.data.get("errno"):
        case "ENOENT":
            return EXIT_NOT_FOUND
        case "EACCES" | "ENOEXEC":
            return EXIT_NOT_EXECUTABLE
        case _:
            return cli.EXIT_RUN_FAILED


@cli.verb(
    "jobs",
    "List and stop jobs: programs that run in sessions. Starts no supervisor.",
    "`nsm exec`, Python clients and models start jobs. Jobs that have ended are listed, too:\n"
    "the last 1000 of each session. `nsm attach SESSION --job ID` shows the output of a job.",
    cli.operand("[SESSION]", "an id, a name, or SCOPE/NAME; else all"),
    cli.flag("-r --running", "only those that run"),
    cli.value("--stop ID", "stop that job: interrupt it, then SIGTERM, then kill it"),
    cli.as_json("an array of objects"),
)
def _jobs(options: Namespace) -> None:
    from nsm.cli.render.sessions import jobs_table  # noqa: PLC0415  # of one verb

    session: str | None = options.session
    if options.stop is not None and session is None:
        raise cli.UsageError("--stop needs the session of the job")
    with connection.running(options, "[]") as client:
        if session is not None:
            connection.tell(client, session)
            if options.stop is not None:
                info = client.job(session, options.stop).stop()
                terminal.out(f"ended job {info.id}")
                return
        found = _found(client, session, running=options.running)
    rows = [
        {"session": each.id, "name": each.name, **job._asdict()}
        for each in found
        for job in each.jobs
    ]
    terminal.answer(options, rows, lambda: jobs_table(found, terminal.width()))


def _found(client: Client, target: str | None, *, running: bool) -> list[SessionJobs]:
    from nsm.cli.render.sessions import SessionJobs  # noqa: PLC0415  # checkers want it above, too

    gone: tuple[type[NsmError], ...] = ()
    if target is None:
        gone = (UnknownSessionError, SessionEndedError, UnknownOperationError)
        sessions = [(row.id, row.name) for row in client.sessions()]
    else:
        meant = connection.find(client, target)
        sessions = [(target, target) if meant is None else (meant.id, meant.name)]
    found: list[SessionJobs] = []
    for id_, name in sessions:
        with suppress(*gone):
            jobs = [job for job in client.jobs(id_) if job.running or not running]
            found.append(SessionJobs(id_, name, jobs))
    return found
