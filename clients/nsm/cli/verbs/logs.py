"""`nsm logs`: what was run in a session, and what came of it."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from nsm.cli import targets, terminal
from nsm.cli.options import EXIT_OK, Parser, whole_number
from nsm.cli.streams.resumed_transcript import Continued
from nsm.client.blocking import Client
from nsm.client.events import entries_to
from nsm.wire.code import logs
from nsm.wire.messages import read

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable
    from typing import Any

    from nsm.cli.targets import TargetSession
    from nsm.wire.messages import Event

_EPILOG = """\
Sessions that have ended are found as well, by id (see `nsm ps --all`) or as the latest of a name.

`> ` stands before code, two spaces before standard output and displayed values, `! ` before
standard error. What a terminal would act on is made visible, and colours are left out, also where
standard output is no terminal: --json has every character.

examples:
  nsm logs work -n 3
  nsm logs work -f
  nsm logs work --json | jq -r 'select(.event == "execution").code'
  nsm logs work --ipynb > work.ipynb
"""


def parser() -> Parser:
    """The verb's options."""
    parser = Parser(
        "logs", "Show what was run in a session, by whom, and what came of it.", _EPILOG
    )
    parser.add_session()
    parser.add_argument(
        "-f",
        "--follow",
        action="store_true",
        help="follow until the session ends, or until Ctrl-C, which is no failure",
    )
    parser.add_argument(
        "-n", "--executions", type=whole_number, metavar="N", help="only the last N executions"
    )
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--json", action="store_true", help="print one object a line as JSON")
    form.add_argument("--ipynb", action="store_true", help="print it as a Jupyter notebook")
    return parser


def main(arguments: list[str]) -> int:
    """Show."""
    verb = parser()
    options = verb.parse_args(arguments)
    if options.ipynb and options.follow:
        verb.error("a notebook is written as a whole, so --ipynb does not follow")
    with Client(autostart=False) as client:
        # One that is lost without a word has crashed: sessions may have outlived it.
        client.autostart = True
        found = targets.find(client, options.session)
        if options.json:
            _print_json(client, options, found)
        elif options.ipynb:
            _print_notebook(client, options, found)
        else:
            _print_text(client, options, found)
    return EXIT_OK


def _print_text(client: Client, options: argparse.Namespace, found: TargetSession | None) -> None:
    from nsm.cli.render.transcript import TranscriptPrinter  # noqa: PLC0415  # not for --json
    from nsm.wire import transcripts  # noqa: PLC0415  # likewise

    transcript, continued = TranscriptPrinter(), Continued()

    def show(event: Event) -> None:
        new = continued.take(event)
        entry = None if new is None else transcripts.entry(new.event, new.data)
        if entry is None:
            return
        if continued.gap:
            continued.gap = False
            terminal.note("the supervisor was replaced; something may be missing here")
        _out(transcript.take(entry), now=options.follow)

    end = read(transcripts.LogEnd, _read(client, options, show, found))
    _out(transcript.end(end), now=True)


def _print_json(client: Client, options: argparse.Namespace, found: TargetSession | None) -> None:
    import json  # noqa: PLC0415  # 2 ms that only --json pays

    continued = Continued()

    def show(event: Event) -> None:
        new = continued.take(event)
        if new is not None:
            _out(json.dumps({"event": new.event, **new.data}) + "\n", now=options.follow)

    end = _read(client, options, show, found)
    _out(json.dumps({"event": "end", **end}) + "\n", now=True)


def _print_notebook(
    client: Client, options: argparse.Namespace, found: TargetSession | None
) -> None:
    from nsm.transcripts.document import Gatherer  # noqa: PLC0415  # only for --ipynb
    from nsm.transcripts.notebook import notebook  # noqa: PLC0415  # likewise

    gatherer = Gatherer()
    _read(client, options, entries_to(gatherer.take), found)
    terminal.out_json(notebook(gatherer.transcript()))


def _read(
    client: Client,
    options: argparse.Namespace,
    show: Callable[[Event], None],
    found: TargetSession | None,
) -> dict[str, Any]:
    """Read the transcript, and say whose session it is if that is another project's.

    Args:
        found: the live session that the name means; this project may have an ended one.
    """

    def take(event: Event) -> None:
        nonlocal found
        if found is not None and event.event == "session":
            if event.data.get("id") == found.id:
                targets.tell_found(found)
            found = None
        show(event)

    call = logs(options.session, executions=options.executions, follow=options.follow)
    return client.ask(call, take, interruptible=True)


def _out(text: str, *, now: bool) -> None:
    sys.stdout.write(text)
    if now:  # else as Python buffers it
        sys.stdout.flush()
