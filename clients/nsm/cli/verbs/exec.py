"""`nsm exec`: start a program as a job of a session, and wait for it."""

from __future__ import annotations

import argparse
import sys

from nsm.cli import terminal
from nsm.cli.options import EXIT_OK, EXIT_RUN_FAILED, Parser, add_network, add_secret, seconds
from nsm.client.blocking import Client
from nsm.client.projects import DEFAULT, project_of, why_no_project
from nsm.wire.errors import JobError, NsmError

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


def parser() -> Parser:
    """The verb's options."""
    parser = Parser("exec", "Start a program in a session, and wait for its end.", _EPILOG)
    parser.usage = "nsm exec [OPTIONS] SESSION [--] PROGRAM [ARGUMENT ...]"
    parser.add_argument(
        "session", metavar="SESSION", help="a name, an id, or SCOPE/NAME; `new`: a fresh name"
    )
    parser.add_argument(
        "argv", nargs=argparse.REMAINDER, metavar="PROGRAM", help="the program and its arguments"
    )
    how = parser.add_argument_group("how it runs")
    how.add_argument("--tty", action="store_true", help="give it a terminal")
    how.add_argument(
        "-d", "--detach", action="store_true", help="print the job's id, and do not wait for it"
    )
    how.add_argument("--no-stdin", action="store_true", help="give it no input")
    how.add_argument("-w", "--cwd", metavar="DIR", help="its working directory in the session")
    how.add_argument(
        "--var",
        action="append",
        default=[],
        type=variable,
        metavar="NAME=VALUE",
        help="set a variable of its environment; may be repeated",
    )
    how.add_argument(
        "-t", "--timeout", type=seconds, metavar="SECONDS", help="time limit; none if not given"
    )
    where = parser.add_argument_group("a session that has to be made")
    where.add_argument(
        "-e",
        "--env",
        metavar="ENV",
        help="its environment, see `nsm env`; else that of [defaults] in config.toml, or bash",
    )
    project = where.add_mutually_exclusive_group()
    project.add_argument("--project", metavar="DIR", help="mount DIR, not the current directory")
    project.add_argument("--no-project", action="store_true", help="mount no project")
    where.add_argument(
        "--project-mode",
        choices=["readonly", "overlay"],
        metavar="MODE",
        help="readonly, or overlay: programs may change the project, in a copy",
    )
    add_network(where.add_argument, "what it may reach: off, full, or hosts separated by commas")
    add_secret(where.add_argument, "a secret that a new session uses and does not see")
    return parser


def variable(text: str) -> tuple[str, str]:
    """A variable and its value."""
    name, sign, value = text.partition("=")
    if not sign or not name:
        message = f"{text!r} is not NAME=VALUE"
        raise argparse.ArgumentTypeError(message)
    return name, value


def parse(arguments: list[str]) -> argparse.Namespace:
    """The options; what follows the first `--` is the program's, else what follows the session."""
    verb = parser()
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
        verb.error("--project-mode is about a project, and --no-project mounts none")
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


def main(arguments: list[str]) -> int:
    """Start, and wait."""
    options = parse(arguments)
    try:
        return _exec(options)
    except BrokenPipeError:
        raise
    except (NsmError, OSError) as error:
        return terminal.report(error, _exit_code(error))


def _exit_code(error: NsmError | OSError) -> int:
    match error.data.get("errno") if isinstance(error, JobError) else None:
        case "ENOENT":
            return EXIT_NOT_FOUND
        case "EACCES" | "ENOEXEC":
            return EXIT_NOT_EXECUTABLE
        case _:
            return EXIT_RUN_FAILED


def _exec(options: argparse.Namespace) -> int:
    from nsm.cli.jobs import raw_terminal  # noqa: PLC0415  # completion and help do without
    from nsm.cli.jobs.foreground import Foreground  # noqa: PLC0415  # likewise
    from nsm.client.standard_input import check_readable  # noqa: PLC0415  # likewise

    given = options.project or (None if options.no_project else DEFAULT)
    reads_input = bool(sys.stdin) and not options.no_stdin and not options.detach
    if reads_input:
        check_readable(sys.stdin.fileno())
    with Client(project=given) as client:
        job = client.exec(
            options.session,
            options.argv,
            env=options.env or "",
            cwd=options.cwd,
            environ=dict(options.var),
            stdin=reads_input,
            tty=raw_terminal.size_of(0) if options.tty else None,
            timeout_s=options.timeout,
            project=given,
            project_mode=options.project_mode,
            network=options.network,
            secrets=options.secrets,
        )
        where = job.started
        if where is not None and where.created:
            project = project_of(given)
            if project.path is None and not project.chosen:
                terminal.note(f"no project is mounted: {why_no_project()}")
            if options.session == "new":
                terminal.note(f"session {where.name}")
        if options.detach:
            terminal.out(job.id)
            return EXIT_OK
        return Foreground(job, tty=options.tty, reads_input=reads_input).run()
