"""`nsm shutdown`: end the supervisor."""

from __future__ import annotations

from nsm.cli import running, terminal
from nsm.cli.options import EXIT_OK, Parser


def parser() -> Parser:
    """The verb's options."""
    parser = Parser(
        "shutdown",
        "End the supervisor and all sessions; returns when it has ended. Starts none.",
    )
    parser.add_json("an array of the supervisors that were ended, each with its pid,")
    return parser


def main(arguments: list[str]) -> int:
    """End it."""
    options = parser().parse_args(arguments)
    client = running.connect()
    if client is None:
        terminal.out("[]" if options.json else "")
        return EXIT_OK
    with client:
        client.shutdown()
        pid = client.server.pid
    if options.json:
        terminal.out_json([{"pid": pid}])
    else:
        terminal.out(f"ended supervisor {pid}")
    return EXIT_OK
