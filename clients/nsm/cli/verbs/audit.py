"""`nsm audit`: who ran what, when, and what came of it."""

from __future__ import annotations

import argparse
import sys
from collections import deque
from typing import TYPE_CHECKING

from nsm import paths
from nsm.cli import terminal
from nsm.cli.options import EXIT_OK, Parser

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from nsm.cli.audit_log import Line

_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 604800}


def parser() -> Parser:
    """The verb's options."""
    parser = Parser(
        "audit",
        "Show who ran what, when, in which session, and what came of it. Needs no supervisor.",
        "Code itself is kept only with `code = true` in [audit] of config.toml, and is in --json.",
    )
    add_choice(parser)
    parser.add_argument(
        "--session", metavar="SESSION", help="of one session: its id, name or SCOPE/NAME"
    )
    parser.add_argument("--json", action="store_true", help="print the lines as they are, JSON")
    return parser


def main(arguments: list[str]) -> int:
    """Show."""
    from nsm.cli import audit_log  # noqa: PLC0415  # not for completion

    options = parser().parse_args(arguments)
    session: str | None = options.session

    def wanted(line: Line) -> bool:
        return session is None or audit_log.concerns(line, session)

    return show(options, paths.audit_path(), wanted, audit_log.words)


def add_choice(parser: Parser) -> None:
    """Options of how much is shown, and for how long."""
    parser.add_argument("-f", "--follow", action="store_true", help="follow new lines until Ctrl-C")
    parser.add_argument(
        "-n", "--lines", type=_count, metavar="N", help="the last N lines only; 0 with -f: new ones"
    )
    parser.add_argument(
        "--since",
        type=_since,
        metavar="TIME",
        help="no earlier ones: 90m, 2h, 7d, or 2026-05-04[T10:11[:12]], UTC",
    )


def show(
    options: argparse.Namespace,
    path: str,
    wanted: Callable[[Line], bool],
    words: Callable[[Line], str],
    *,
    counting_up: bool = False,
) -> int:
    """Show lines of an audit.

    Args:
        options: those of `add_choice`, and `json`.
        path: path of its newest file.
        wanted: chooses lines.
        words: puts one into words.
        counting_up: as in `nsm.cli.audit_log.files`.
    """
    import json  # noqa: PLC0415  # for --json only, and as the next one

    from nsm.cli import audit_log  # noqa: PLC0415  # not for completion

    since: str = options.since or ""

    def chosen(lines: Iterable[Line]) -> Iterable[Line]:
        return (line for line in lines if line["at"] >= since and wanted(line))

    def print_all(lines: Iterable[Line]) -> None:
        for line in lines:
            if options.json:
                sys.stdout.write(json.dumps(line) + "\n")  # ASCII, as `terminal.out_json`
            else:
                terminal.out(words(line))
        if options.follow:
            sys.stdout.flush()

    if not options.follow:
        there = audit_log.read(path, counting_up=counting_up)
        print_all(_last(chosen(there), options.lines))
        if not audit_log.files(path):
            terminal.note(f"nothing is written down yet, in {path}")
        return EXIT_OK
    try:
        added = audit_log.follow(path, counting_up=counting_up)
        until_now: Iterable[Line] = iter(lambda: next(added), None)
        print_all(_last(chosen(until_now), options.lines))
        for line in added:
            if line is not None:
                print_all(chosen([line]))
    except KeyboardInterrupt:
        return EXIT_OK
    return EXIT_OK


def _last(lines: Iterable[Line], count: int | None) -> Iterable[Line]:
    return lines if count is None else deque(lines, count)


def _count(text: str) -> int:
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of lines")
    return int(text)


def _since(text: str) -> str:
    """A time as the lines have it, in RFC 3339; the beginning of one compares as it should."""
    import time  # noqa: PLC0415  # only where it is asked for

    if text[-1:] in _UNITS and text[:-1].isdecimal():
        begin = time.time() - int(text[:-1]) * _UNITS[text[-1]]
        return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(max(0.0, begin)))
    for form in ("%Y-%m-%d", "%Y-%m-%dT%H:%M", "%Y-%m-%dT%H:%M:%S", "%Y-%m-%dT%H:%M:%SZ"):
        try:
            return time.strftime("%Y-%m-%dT%H:%M:%S", time.strptime(text, form))
        except ValueError:
            continue
    raise argparse.ArgumentTypeError(
        f"{text!r} is no time; expected 90m, 2h, 7d, 2026-05-04 or 2026-05-04T10:11"
    )
