"""`nsm top` for programs and for pipes: tables or JSON, as often as asked."""

from __future__ import annotations

import itertools
import sys
import time
from typing import TYPE_CHECKING

from nsm.cli import running, terminal
from nsm.cli.options import EXIT_FAILED, EXIT_OK
from nsm.cli.top.board import heading, plain
from nsm.cli.top.figures import Rates, matching, ordered, totals
from nsm.client import Client
from nsm.wire.errors import DisconnectedError, NotRunningError

if TYPE_CHECKING:
    import argparse

    from nsm.cli.top.figures import Line

ALL_COLUMNS = 1000
"""Nothing is left out: whoever reads this has no terminal to fit into."""

AWAY_S = 30.0
"""How long a supervisor may be away that is being started anew."""


def batch(options: argparse.Namespace) -> int:
    """Look as often as asked, and print what was seen; the first look is only compared with.

    Returns:
        The exit code.

    Raises:
        NsmError: the supervisor has gone, and did not come back.
    """
    times = 1 if options.batch is None else options.batch
    client = running.connect()
    if client is None:
        return EXIT_FAILED
    looks = Looks(client, options.delay)
    try:
        looks.take()
        for _ in range(times) if times else itertools.count():
            time.sleep(options.delay)
            lines = matching(looks.take(), options.match)
            chosen = ordered(lines, options.sort, reverse=options.reverse)
            sys.stdout.write(_json(chosen) if options.json else looks.text(chosen))
            sys.stdout.flush()
    except KeyboardInterrupt:
        if times:
            raise
    finally:
        looks.close()
    return EXIT_OK


class Looks:
    """Looks at the sessions of whatever supervisor there is.

    Args:
        client: of the first one.
        delay_s: between attempts to find the next.
    """

    def __init__(self, client: Client, delay_s: float) -> None:
        self._client = client
        self._delay_s = delay_s
        self._rates = Rates()

    def close(self) -> None:
        """Close the connection."""
        self._client.close()

    def take(self) -> list[Line]:
        """What there is now.

        Raises:
            NsmError: there has been no supervisor for `AWAY_S`.
        """
        try:
            rows = self._client.sessions()
        except DisconnectedError as error:
            terminal.report(error)
            self._client.close()
            self._client = self._next()
            rows = self._client.sessions()
        return self._rates.take(rows, time.monotonic())

    def _next(self) -> Client:
        given_up_s = time.monotonic() + AWAY_S
        while True:
            try:
                return Client(autostart=False)
            except (NotRunningError, DisconnectedError):
                if time.monotonic() > given_up_s:
                    raise
                time.sleep(min(self._delay_s, 1.0))

    def text(self, lines: list[Line]) -> str:
        """For people."""
        server = self._client.server
        return plain(lines, heading(server.program_version, server.pid), ALL_COLUMNS) + "\n\n"


def _json(lines: list[Line]) -> str:
    import json  # noqa: PLC0415  # 2 ms that only --json pays

    sessions = [
        {**line.row._asdict(), "cpu_percent": line.cpu_percent, "runs_per_s": line.runs_per_s}
        for line in lines
    ]
    value = {"at": time.time(), "totals": totals(lines)._asdict(), "sessions": sessions}
    return json.dumps(value, allow_nan=False) + "\n"
