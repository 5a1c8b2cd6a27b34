"""`nsm interrupt`: stop what runs in a session, and keep the session."""

from __future__ import annotations

from nsm.cli import targets, terminal
from nsm.cli.options import EXIT_OK, Parser
from nsm.client.blocking import Client


def parser() -> Parser:
    """The verb's options."""
    parser = Parser(
        "interrupt",
        "Interrupt the code that runs in a session, as Ctrl-C would. Its state is kept.",
        "Exits 0 also when nothing ran, 1 when the session is unknown.",
    )
    parser.add_session()
    return parser


def main(arguments: list[str]) -> int:
    """Interrupt."""
    options = parser().parse_args(arguments)
    with Client(autostart=False) as client:
        targets.tell(client, options.session)
        if not client.interrupt(options.session):
            terminal.note("nothing was running")
    return EXIT_OK
