"""`nsm attach`: a person joins a session, and sees what everybody runs in it.

prompt_toolkit, which draws the prompt, runs on asyncio and takes 0.1 s to import: only the modules
of `nsm.cli.attach` load either.
"""

from __future__ import annotations

import sys

from nsm.cli import targets, terminal
from nsm.cli.options import EXIT_USAGE, Parser, seconds, whole_number

_EPILOG = """\
The session goes on when you leave, with all that runs in it. Your code and that of the others is
queued, one execution at a time.

keys:
  Enter       runs the code, or begins a new line where it is unfinished
  Alt-Enter   runs the code as it is
  Tab         completes names that live in the session
  Ctrl-R      searches in what you typed earlier in this environment
  Ctrl-C      clears the line; interrupts what you run;
              twice: what somebody else runs
  Ctrl-D      leaves

Exits 0 when you left, 1 when the session ended.

With --job, you see what that job has printed so far and what it prints from now on, and it gets
what you type. Keys and exit codes are those of `nsm exec`.
"""


def parser() -> Parser:
    """The verb's options."""
    parser = Parser("attach", "Join a session: type code, and see what others run in it.", _EPILOG)
    parser.add_session()
    parser.add_argument(
        "-n",
        "--executions",
        type=whole_number,
        default=3,
        metavar="N",
        help="begin with the last N executions; 3 if not given",
    )
    parser.add_argument(
        "-t", "--timeout", type=seconds, metavar="SECONDS", help="limit of each execution of yours"
    )
    parser.add_argument("--job", metavar="ID", help="join a job of the session, see `nsm jobs`")
    parser.add_argument("--images", metavar="DIR", help="write displayed images to this directory")
    return parser


def main(arguments: list[str]) -> int:
    """Attach."""
    options = parser().parse_args(arguments)
    if options.job is not None:
        return _join_job(options.session, options.job)
    if not (sys.stdin and sys.stdin.isatty() and sys.stdout.isatty()):
        terminal.note(
            "`nsm attach` needs a terminal to read from and to write to\n"
            "Run code with `nsm run -e ENV -s NAME CODE`, read along with `nsm logs -f SESSION`."
        )
        return EXIT_USAGE
    from nsm.cli.attach.program import attach  # noqa: PLC0415  # see above

    return attach(
        options.session,
        executions=options.executions,
        timeout_s=options.timeout,
        images=options.images,
    )


def _join_job(session: str, job_id: str) -> int:
    from nsm.cli.jobs import raw_terminal  # noqa: PLC0415  # as above
    from nsm.cli.jobs.foreground import Foreground  # noqa: PLC0415
    from nsm.client.blocking import Client  # noqa: PLC0415

    with Client(autostart=False) as client:
        targets.tell(client, session)
        job = client.job(session, job_id)
        ours = bool(sys.stdin) and sys.stdin.isatty() and sys.stdout.isatty()
        tty = job.info.tty and job.info.running and ours
        if tty:
            job.resize(*raw_terminal.size_of(0))
        reads_input = job.info.takes_input and bool(sys.stdin) and (tty or not job.info.tty)
        # Whoever only looks, with its input empty, does not end the job's.
        return Foreground(job, tty=tty, reads_input=reads_input, ends_input=False).run()
