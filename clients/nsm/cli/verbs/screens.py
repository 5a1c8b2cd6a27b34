"""`nsm attach` and `nsm top`: a person joins a session, or looks at all of them.

prompt_toolkit, which draws both, runs on asyncio and takes 0.1 s to import: only the modules of
`nsm.cli.attach` and `nsm.cli.top.program` load either.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from nsm.cli import connection, terminal
from nsm.cli import options as cli
from nsm.cli.top.board import ORDERS, SHORTEST_S

if TYPE_CHECKING:
    from argparse import Namespace

_EPILOG_OF_ATTACH = """\
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

_EPILOG_OF_TOP = """\
CPU% is of one processor, since the last look; RUNS/S counts executions. FOR is how long a session
has been in its state. Looking costs the supervisor one request, and at most a tenth of its time.

keys: q leaves, ? tells the others (sort, filter, kill, interrupt, attach, logs, inspect).
The table goes on by itself when the supervisor is restarted. Colours are left out where
NO_COLOR is set.

examples:
  nsm top --sort memory
  nsm top -b 1
  nsm top --json -b 5 -d 1 | jq -c '.totals'
"""


@cli.verb(
    "attach",
    "Join a session: type code, and see what others run in it.",
    _EPILOG_OF_ATTACH,
    cli.SESSION,
    cli.value(
        "-n --executions N",
        "begin with the last N executions; 3 if not given",
        cli.whole_number,
        default=3,
    ),
    cli.value("-t --timeout SECONDS", "limit of each execution of yours", cli.seconds),
    cli.value("--job ID", "join a job of the session, see `nsm jobs`"),
    cli.value("--images DIR", "write displayed images to this directory"),
)
def _attach(options: Namespace) -> int:
    if options.job is not None:
        return _join_job(options.session, options.job)
    if not _has_terminal():
        terminal.note(
            "`nsm attach` needs a terminal to read from and to write to\n"
            "Run code with `nsm run -e ENV -s NAME CODE`, read along with `nsm logs -f SESSION`."
        )
        return cli.EXIT_USAGE
    from nsm.cli.attach.program import attach  # noqa: PLC0415  # see above

    return attach(
        options.session,
        executions=options.executions,
        timeout_s=options.timeout,
        images=options.images,
    )


def _has_terminal() -> bool:
    return bool(sys.stdin) and sys.stdin.isatty() and sys.stdout.isatty()


def _join_job(session: str, job_id: str) -> int:
    from nsm.cli.foreground import Foreground, size_of  # noqa: PLC0415  # as above

    with connection.client_of(session) as client:
        job = client.job(session, job_id)
        tty = job.info.tty and job.info.running and _has_terminal()
        if tty:
            job.resize(*size_of(0))
        reads_input = job.info.takes_input and bool(sys.stdin) and (tty or not job.info.tty)
        # Whoever only looks, with its input empty, does not end the job's.
        return Foreground(job, tty=tty, reads_input=reads_input, ends_input=False).run()


@cli.verb(
    "top",
    "Watch the sessions: processor, memory, rates. Starts no supervisor.",
    _EPILOG_OF_TOP,
    cli.value("-d --delay SECONDS", "between refreshes; 2", cli.seconds, default=2.0),
    cli.value("-s --sort COLUMN", ", ".join(ORDERS), choices=ORDERS, default="cpu"),
    cli.flag("-r --reverse", "sort the other way round"),
    cli.value("-m --match TEXT", "only sessions that contain this text", default=""),
    cli.value(
        "-b --batch N", "print that many tables, then end; 0: until Ctrl-C", cli.whole_number
    ),
    cli.ALL_HOSTS,
    cli.as_json("an object a line for each look, one if there is no -b,"),
)
def _top(options: Namespace) -> int:
    if options.delay < SHORTEST_S:
        raise cli.UsageError(
            f"--delay is at least {SHORTEST_S:g} s: processor time is counted in hundredths"
        )
    if options.batch is not None or options.json:
        from nsm.cli.top.batch import batch  # noqa: PLC0415  # not at a terminal

        return batch(options)
    if not _has_terminal():
        terminal.note(
            "`nsm top` needs a terminal\nPrint tables with `nsm top -b 1`, or see `nsm ps`."
        )
        return cli.EXIT_USAGE
    from nsm.cli.top.program import watch  # noqa: PLC0415  # see above

    return watch(
        order=options.sort,
        wanted=options.match,
        reverse=options.reverse,
        delay_s=options.delay,
        all_hosts=options.all_hosts,
    )
