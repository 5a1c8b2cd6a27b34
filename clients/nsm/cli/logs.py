"""`nsm logs`: what was run in a session, and what came of it."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from nsm import operations
from nsm.cli.options import EXIT_OK, Parser, whole_number
from nsm.client import Client

if TYPE_CHECKING:
    import argparse

    from nsm.wire.messages import Event
    from nsm.wire.transcripts import Entry

_EPILOG = """\
Sessions that have ended are found as well, by id (see `nsm ps --all`) or as the latest of a name.

`> ` stands before code, two spaces before standard output and displayed values, `! ` before
standard error. What a terminal would act on is made visible, and colours are left out, also where
standard output is no terminal: --json has every character.

examples:
  nsm logs work -n 3
  nsm logs work -f
  nsm logs work --json | jq -r 'select(.event == "execution").code'
"""


def parser() -> Parser:
    """The verb's options."""
    parser = Parser(
        "logs", "Show what was run in a session, by whom, and what came of it.", _EPILOG
    )
    parser.add_argument("session", metavar="SESSION", help="an id, a name, or SCOPE/NAME")
    parser.add_argument(
        "-f",
        "--follow",
        action="store_true",
        help="go on until the session ends, or until Ctrl-C, which is no failure",
    )
    parser.add_argument(
        "-n", "--executions", type=whole_number, metavar="N", help="only the last N executions"
    )
    parser.add_json("one object a line")
    return parser


def main(arguments: list[str]) -> int:
    """Show."""
    options = parser().parse_args(arguments)
    with Client(autostart=False) as client:
        if options.json:
            _print_json(client, options)
        else:
            _print_text(client, options)
    return EXIT_OK


def _print_text(client: Client, options: argparse.Namespace) -> None:
    from nsm.cli.transcript import Transcript  # noqa: PLC0415  # not for --json

    transcript = Transcript()

    def show(entry: Entry) -> None:
        _out(transcript.take(entry), now=options.follow)

    end = client.logs(
        options.session, executions=options.executions, follow=options.follow, on_entry=show
    )
    _out(transcript.end(end), now=True)


def _print_json(client: Client, options: argparse.Namespace) -> None:
    import json  # noqa: PLC0415  # 2 ms that only --json pays

    def show(event: Event) -> None:
        _out(json.dumps({"event": event.event, **event.data}) + "\n", now=options.follow)

    arguments = operations.logs_arguments(
        options.session, executions=options.executions, follow=options.follow
    )
    end = client.call("logs", arguments, on_event=show, interruptible=True)
    _out(json.dumps({"event": "end", **end}) + "\n", now=True)


def _out(text: str, *, now: bool) -> None:
    sys.stdout.write(text)
    if now:  # else as Python buffers it
        sys.stdout.flush()
