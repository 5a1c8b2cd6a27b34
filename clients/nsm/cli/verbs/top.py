"""`nsm top`: a table of the sessions that is looked at while things happen.

prompt_toolkit, which draws it, takes 0.1 s to import: only `nsm.cli.top.program` loads it.
"""

from __future__ import annotations

import sys

from nsm.cli import terminal
from nsm.cli.options import EXIT_USAGE, Parser, add_all_hosts, seconds, whole_number
from nsm.cli.top.figures import ORDERS, SHORTEST_S

_EPILOG = """\
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


def parser() -> Parser:
    """The verb's options."""
    parser = Parser("top", "Watch the sessions: processor, memory, rates. Starts none.", _EPILOG)
    parser.add_argument(
        "-d", "--delay", type=seconds, default=2.0, metavar="SECONDS", help="between refreshes; 2"
    )
    parser.add_argument(
        "-s", "--sort", choices=ORDERS, default="cpu", metavar="COLUMN", help=", ".join(ORDERS)
    )
    parser.add_argument("-r", "--reverse", action="store_true", help="sort the other way round")
    parser.add_argument(
        "-m", "--match", default="", metavar="TEXT", help="only sessions that contain this text"
    )
    parser.add_argument(
        "-b",
        "--batch",
        type=whole_number,
        metavar="N",
        help="print that many tables, then end; 0: until Ctrl-C",
    )
    add_all_hosts(parser)
    parser.add_json("an object a line for each look, one if there is no -b,")
    return parser


def main(arguments: list[str]) -> int:
    """Watch."""
    verb = parser()
    options = verb.parse_args(arguments)
    if options.delay < SHORTEST_S:
        verb.error(f"--delay is at least {SHORTEST_S:g} s: processor time is counted in hundredths")
    if options.batch is not None or options.json:
        from nsm.cli.top.batch import batch  # noqa: PLC0415  # not at a terminal

        return batch(options)
    if not (sys.stdin and sys.stdin.isatty() and sys.stdout.isatty()):
        terminal.note(
            "`nsm top` needs a terminal\nPrint tables with `nsm top -b 1`, or see `nsm ps`."
        )
        return EXIT_USAGE
    from nsm.cli.top.program import watch  # noqa: PLC0415  # see above

    return watch(
        order=options.sort,
        wanted=options.match,
        reverse=options.reverse,
        delay_s=options.delay,
        all_hosts=options.all_hosts,
    )
