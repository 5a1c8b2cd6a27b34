"""`nsm top` for programs and for pipes: tables or JSON, as often as asked."""

from __future__ import annotations

import itertools
import sys
import time
from typing import TYPE_CHECKING

from nsm.cli import connection
from nsm.cli.options import EXIT_FAILED, EXIT_OK
from nsm.cli.top.board import heading, plain
from nsm.cli.top.figures import Rates, matching, ordered, totals

if TYPE_CHECKING:
    import argparse

    from nsm.cli.top.figures import Line
    from nsm.client.blocking import Client

ALL_COLUMNS = 1000
"""Nothing is left out: whoever reads this has no terminal to fit into."""


def batch(options: argparse.Namespace) -> int:
    """Look as often as asked, and print what was seen; the first look is only compared with.

    Returns:
        The exit code.

    Raises:
        NsmError: the supervisor has gone, and none came in its place.
    """
    times = 1 if options.batch is None else options.batch
    client = connection.connect()
    if client is None:
        return EXIT_FAILED
    rates = Rates()
    with client:
        try:
            rates.take(client.sessions(), time.monotonic())
            for _ in range(times) if times else itertools.count():
                time.sleep(options.delay)
                lines = rates.take(client.sessions(), time.monotonic())
                chosen = ordered(
                    matching(lines, options.match), options.sort, reverse=options.reverse
                )
                sys.stdout.write(_json(chosen, client) if options.json else _text(chosen, client))
                sys.stdout.flush()
        except KeyboardInterrupt:
            if times:
                raise
    return EXIT_OK


def _text(lines: list[Line], client: Client) -> str:
    server = client.server
    above = heading(server.program_version, server.pid)
    return plain(lines, above, ALL_COLUMNS, client.boxes.list()) + "\n\n"


def _json(lines: list[Line], client: Client) -> str:
    import json  # noqa: PLC0415  # 2 ms that only --json pays

    sessions = [
        {**line.row._asdict(), "cpu_percent": line.cpu_percent, "runs_per_s": line.runs_per_s}
        for line in lines
    ]
    boxes = [
        {**row._asdict(), "limits": row.limits and row.limits._asdict()}
        for row in client.boxes.list()
    ]
    value = {
        "at": time.time(),
        "totals": totals(lines)._asdict(),
        "sessions": sessions,
        "boxes": boxes,
    }
    return json.dumps(value, allow_nan=False) + "\n"
