"""`nsm discard`: what a session has changed in the project, taken back."""

from __future__ import annotations

from nsm.changes import Changes
from nsm.cli import terminal
from nsm.cli.confirm import agreed
from nsm.cli.options import EXIT_FAILED, EXIT_OK, Parser
from nsm.cli.project_changes import (
    add_operands,
    counted,
    parsed,
    session_to_change,
    summary,
    tell_refused,
    tell_unchanged,
)
from nsm.client.blocking import Client

_EPILOG = """\
The files are then, in the session, what they are on the host at this moment. All that the session
has goes with it when it ends, so that `nsm kill` discards everything, too.

examples:
  nsm discard work
  nsm discard work src/main.py
"""

_UNDONE = "nothing was discarded"


def parser() -> Parser:
    """The verb's options."""
    parser = Parser(
        "discard", "Take back what a session has changed in its copy of the project.", _EPILOG
    )
    add_operands(parser)
    parser.add_yes()
    parser.add_json("an object with what was discarded and what was not")
    return parser


def main(arguments: list[str]) -> int:
    """Discard."""
    options, paths = parsed(parser(), arguments, asks=True)
    with Client(autostart=False) as client:
        session = session_to_change(client, options, "Discard its changes?", _UNDONE)
        if session is None:
            return EXIT_FAILED
        changes = Changes(client)
        rows, _ = changes.rows(session, paths) if paths or not options.yes else ([], None)
        tell_unchanged(rows, paths)
        if not options.yes:
            if not rows:
                terminal.note("there is nothing to discard")
                return EXIT_OK
            terminal.out(summary(rows))
            if not agreed(f"Discard {counted(len(rows))} in the session?"):
                terminal.note(_UNDONE)
                return EXIT_FAILED
        report = changes.discard(session, paths)
    if options.json:
        terminal.out_json({"discarded": report.done, "refused": report.refused})
    else:
        terminal.out(f"discarded {counted(report.done)}")
        tell_refused(report)
    return EXIT_FAILED if report.refused else EXIT_OK
