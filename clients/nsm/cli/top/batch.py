"""`nsm top` for programs and for pipes: tables or JSON, as often as asked."""

from __future__ import annotations

import itertools
import sys
import time
from contextlib import ExitStack
from typing import TYPE_CHECKING

from nsm.cli import connection
from nsm.cli.options import EXIT_FAILED, EXIT_OK
from nsm.cli.top.board import Rates, heading, matching, ordered, plain, totals
from nsm.wire.tuples import NamedTuple

if TYPE_CHECKING:
    import argparse

    from nsm.cli.top.board import Line
    from nsm.client.blocking import Client


def batch(options: argparse.Namespace) -> int:
    """Look as often as asked, and print what was seen; the first look is only compared with.
    Returns the exit code."""
    times = 1 if options.batch is None else options.batch
    with ExitStack() as stack:
        watched, code = _watched(options, stack)
        if not watched:
            return EXIT_FAILED
        try:
            _look(watched)
            for _ in range(times) if times else itertools.count():
                time.sleep(options.delay)
                chosen = ordered(
                    matching(_look(watched), options.match), options.sort, reverse=options.reverse
                )
                write = _json if options.json else _text
                sys.stdout.write(write(chosen, watched))
                sys.stdout.flush()
        except KeyboardInterrupt:
            if times:
                raise
    return code


class _Watched(NamedTuple):
    """One supervisor that is looked at; `host` is empty if it is the only one."""

    host: str
    client: Client
    rates: Rates


def _watched(options: argparse.Namespace, stack: ExitStack) -> tuple[list[_Watched], int]:
    """The supervisors to look at, and an exit code."""
    if not options.all_hosts:
        client = connection.running(code=EXIT_FAILED)
        return [_Watched("", stack.enter_context(client), Rates())], EXIT_OK
    from nsm.cli.all_hosts import HostClients, shown  # noqa: PLC0415  # of one option

    clients = HostClients()
    return [
        _Watched(shown(host), stack.enter_context(client), Rates())
        for host, client in clients.opened()
    ], clients.code


def _look(watched: list[_Watched]) -> list[Line]:
    return [
        line._replace(host=each.host)
        for each in watched
        for line in each.rates.take(each.client.sessions(), time.monotonic())
    ]


def _text(lines: list[Line], watched: list[_Watched]) -> str:
    above = "\n".join(
        (f"{each.host}: " if each.host else "")
        + heading(each.client.server.program_version, each.client.server.pid)
        for each in watched
    )
    boxes = [row for each in watched for row in each.client.boxes.list()]
    return plain(lines, above, boxes) + "\n\n"


def _json(lines: list[Line], watched: list[_Watched]) -> str:
    import json  # noqa: PLC0415  # 2 ms that only --json pays

    sessions = [
        {
            **line.row._asdict(),
            "cpu_percent": line.cpu_percent,
            "runs_per_s": line.runs_per_s,
            **_host(line.host),
        }
        for line in lines
    ]
    boxes = [
        {**row._asdict(), "limits": row.limits and row.limits._asdict(), **_host(each.host)}
        for each in watched
        for row in each.client.boxes.list()
    ]
    value = {
        "at": time.time(),
        "totals": totals(lines)._asdict(),
        "sessions": sessions,
        "boxes": boxes,
    }
    return json.dumps(value, allow_nan=False) + "\n"


def _host(host: str) -> dict[str, str]:
    return {"host": host} if host else {}
