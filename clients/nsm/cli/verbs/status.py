"""`nsm status`: the supervisor itself."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nsm.cli import connection, terminal
from nsm.cli.options import EXIT_FAILED, EXIT_OK, Parser
from nsm.cli.render.supervisor import status_lines
from nsm.cli.verbs import metrics, pool, stats

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable


def parser() -> Parser:
    """The verb's options."""
    parser = Parser(
        "status",
        "Show the supervisor's version, process, socket and counts. Starts none.",
        "Without an ACTION it exits 1 when no supervisor runs.",
    )
    parser.add_json("one object, or null when no supervisor runs,")
    actions = parser.add_actions(required=False)
    actions.add_parser("pool", "show the sessions that are kept ready", pool.parser())
    actions.add_parser("times", "show how long things take", stats.parser())
    actions.add_parser("metrics", "print all that is counted, for Prometheus", metrics.parser())
    return parser


def main(arguments: list[str]) -> int:
    """Show."""
    verb = parser()
    options = verb.parse_args(verb.action_first(arguments))
    return _ACTIONS[options.action](options)


def _show(options: argparse.Namespace) -> int:
    client = connection.connect(options)
    if client is None:
        return EXIT_FAILED
    with client:
        status = client.status()
    terminal.answer(options, status, lambda: status_lines(status))
    return EXIT_OK


_ACTIONS: dict[str | None, Callable[[argparse.Namespace], int]] = {
    None: _show,
    "pool": pool.show,
    "times": stats.show,
    "metrics": metrics.show,
}
