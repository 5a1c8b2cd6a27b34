"""`nsm fork`: make new sessions that go on from where a running one is."""

from __future__ import annotations

from nsm.cli import targets, terminal
from nsm.cli.options import EXIT_OK, Parser, whole_number
from nsm.client.blocking import Client
from nsm.wire.sessions import ForkReport

_EPILOG = """\
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


def parser() -> Parser:
    """The verb's options."""
    parser = Parser("fork", "Make copies of a running Python or Bash session.", _EPILOG)
    parser.add_session()
    parser.add_argument("names", metavar="NEW", nargs="*", default=[], help="names of the forks")
    parser.add_argument(
        "-n", "--count", type=whole_number, metavar="N", help="number of forks (default: 1)"
    )
    parser.add_json("the forks, and what they do not have")
    return parser


def main(arguments: list[str]) -> int:
    """Fork."""
    command = parser()
    options = command.parse_args(arguments)
    if options.count == 0:
        command.error("argument -n/--count: 0 forks are none; N is 1 or more")
    with Client(autostart=False) as client:
        targets.tell(client, options.session)
        report = client.fork(options.session, *options.names, count=options.count)
    terminal.answer(options, report, lambda: _text(report))
    return EXIT_OK


def _text(report: ForkReport) -> str:
    lines = [f"{fork.name} ({fork.id})" for fork in report.forks]
    if report.closed:
        lines.append(f"not in the forks: {', '.join(report.closed)}")
    return "\n".join(lines)
