"""`nsm status`: the supervisor itself."""

from __future__ import annotations

from nsm.cli import render, running, terminal
from nsm.cli.options import EXIT_FAILED, EXIT_OK, Parser


def parser() -> Parser:
    """The verb's options."""
    parser = Parser(
        "status",
        "Show the supervisor's version, process, socket and counts. Starts none.",
        "Exits 1 when no supervisor runs.",
    )
    parser.add_json("one object, or null when no supervisor runs,")
    return parser


def main(arguments: list[str]) -> int:
    """Show."""
    options = parser().parse_args(arguments)
    client = running.connect()
    if client is None:
        terminal.out("null" if options.json else "")
        return EXIT_FAILED
    with client:
        status = client.status()
    if options.json:
        parts = {
            "jail": status.jail,
            "limits": status.limits,
            "audit": status.audit,
            "survival": status.survival,
            "bridge": status.bridge,
            "http": status.http,
        }
        shown = {name: None if part is None else part._asdict() for name, part in parts.items()}
        terminal.out_json(status._asdict() | shown)
    else:
        terminal.out(render.status(status))
    return EXIT_OK
