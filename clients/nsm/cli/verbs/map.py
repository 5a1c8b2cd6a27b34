"""`nsm map`: run many programs, each in a fresh interpreter of a session."""

from __future__ import annotations

import argparse
import json
import sys
import time
from typing import TYPE_CHECKING, cast

from nsm.cli import options as cli
from nsm.cli import terminal
from nsm.client.blocking import Client
from nsm.client.local_files import open_input
from nsm.client.places import DEFAULT
from nsm.wire.decode import DecodeError, decode
from nsm.wire.errors import BadRequestError, NsmError
from nsm.wire.fresh import MAX_AT_ONCE, FreshProgram

if TYPE_CHECKING:
    from argparse import Namespace
    from collections.abc import Iterator
    from typing import IO, Any

    from nsm.wire.fresh import FreshResult

EXIT_NOT_RUN = 1

MAX_LINE_BYTES = 16 * 1024 * 1024
"""Longest line, which is more than the longest code takes."""

PROGRESS_S = 0.5
"""Seconds between two looks of the progress on a terminal."""

_EPILOG = """\
Each line of FILE is a program: its code as a JSON string, or an object with `code` and, if wanted,
`timeout_s`, `argv` and `id`. Each line of standard output is the result of one, as a JSON object:
`line` and `id` say of which, the rest is as with `nsm run --json`. Results come as programs end.

A program that cannot be run has a result with `error`, and costs no other program. Programs are
read as others end, so FILE may be a pipe: but up to 16 for each that runs are read before results
are printed. Ctrl-C ends those that run; the rest is not run.

Programs of one session share its files, network and limits, and can disturb each other if they want
to: use a session for each owner of programs.

exit codes:
  0    all programs were run, whatever their own exit codes
  1    some could not be run, or did not run to their end: `error` says why
  125  nsm could not begin, or not go on
  130  interrupted
  2    wrong usage

examples:
  nsm map -s grader -e python programs.jsonl > results.jsonl
  jq -c '{id: .task, code: .solution}' tasks.jsonl |
    nsm map -s grader -e python -t 5 --in-order -
"""


def _at_once(text: str) -> int:
    """A number of programs at the same time."""
    number = cli.whole_number(text)
    if not 1 <= number <= MAX_AT_ONCE:
        message = f"{number} is not from 1 to {MAX_AT_ONCE}"
        raise argparse.ArgumentTypeError(message)
    return number


@cli.verb(
    "map",
    "Run many programs, each in a fresh interpreter of a session.",
    _EPILOG,
    cli.operand("FILE", "the programs, one on each line; `-`: standard input"),
    cli.value("-s --session NAME", "the session, which is made if it is not there", required=True),
    cli.value("-e --env ENV", "the environment of a new session"),
    cli.value(
        "-n --at-once NUMBER",
        f"programs at the same time, at most {MAX_AT_ONCE}; as many as processors",
        _at_once,
    ),
    cli.value("-t --timeout SECONDS", "time limit of programs that have none", cli.seconds),
    cli.flag("--in-order", "print results in the order of the programs"),
    cli.project("mount DIR, not the current directory"),
    failure=cli.EXIT_RUN_FAILED,
)
def _map(options: Namespace) -> int:
    given = options.project or (None if options.no_project else DEFAULT)
    with open_input(options.file) as file, Client(project=given) as client:
        lines = _Lines(file)
        progress = _Progress()
        failed = False
        runs = client.map(
            lines,
            session=options.session,
            env=options.env or "",
            at_once=options.at_once,
            in_order=options.in_order,
            timeout_s=options.timeout,
        )
        try:
            with runs:
                for result in runs:
                    failed |= bool(result.error)
                    # In ASCII: a terminal never sees its control characters.
                    print(json.dumps(lines.told(result)), flush=True)
                    progress.show(result)
        except KeyboardInterrupt:
            progress.end()
            terminal.note("interrupted; programs whose results are missing did not run to an end")
            return cli.EXIT_INTERRUPTED
        progress.end()
    return EXIT_NOT_RUN if failed else 0


class _Lines:
    """Programs of a file, and which line each is from."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self._lines: dict[int, tuple[int, object]] = {}

    def __iter__(self) -> Iterator[FreshProgram | NsmError]:
        number = count = 0
        while line := self._file.readline(MAX_LINE_BYTES + 1):
            number += 1
            if len(line) > MAX_LINE_BYTES:
                while line and not line.endswith(b"\n"):
                    line = self._file.readline(MAX_LINE_BYTES)
                program: FreshProgram | NsmError = _broken(f"it has over {MAX_LINE_BYTES} bytes")
                id_: object = None
            elif line.strip():
                program, id_ = _program(line)
            else:
                continue
            self._lines[count] = number, id_
            count += 1
            yield program

    def told(self, result: FreshResult) -> dict[str, Any]:
        """Make what is printed of a result."""
        line, id_ = self._lines.pop(result.number)
        told = result._asdict()
        del told["number"]
        truncated = {stream: what._asdict() for stream, what in result.truncated.items()}
        named = {} if id_ is None else {"id": id_}
        return {"line": line, **named, **told, "truncated": truncated}


def _program(line: bytes) -> tuple[FreshProgram | NsmError, object]:
    """Read a line: its program, or why it is none, and its id."""
    try:
        given: Any = json.loads(line)
    except (ValueError, RecursionError) as error:
        return _broken(f"it is not JSON: {error}"), None
    if isinstance(given, str):
        return FreshProgram(given), None
    if not isinstance(given, dict):
        return _broken("it is neither a text nor an object"), None
    told = cast("dict[str, Any]", given)
    id_ = told.get("id")
    if unknown := told.keys() - {"id", "code", "timeout_s", "argv"}:
        return _broken(f"it has unknown keys: {', '.join(sorted(map(repr, unknown)))}"), id_
    try:
        program = decode(FreshProgram, {name: told[name] for name in told if name != "id"})
    except DecodeError as error:
        if error.missing:
            return _broken(f"it has no `{error.path}`"), id_
        return _broken(f"`{error.path}` is {error.found!r:.40}, not {error.expected}"), id_
    return program, id_


def _broken(why: str) -> NsmError:
    return BadRequestError(f"The line is no program: {why}.")


class _Progress:
    """A line on a terminal that says how many programs have ended."""

    def __init__(self) -> None:
        # Results on the same terminal are progress enough.
        self._wanted = sys.stderr.isatty() and not sys.stdout.isatty()
        self._begun_s = self._shown_s = time.monotonic()
        self._count = self._failed = 0

    def show(self, result: FreshResult) -> None:
        """Count a result, and show the number now and then."""
        self._count += 1
        self._failed += result.exit_code != 0
        now = time.monotonic()
        if self._wanted and now - self._shown_s >= PROGRESS_S:
            self._shown_s = now
            rate = self._count / (now - self._begun_s)
            failed = f", {self._failed:,} failed" if self._failed else ""
            terminal.draw(f"{self._count:,} programs{failed}, {rate:,.0f} a second")

    def end(self) -> None:
        """Take the line away."""
        if self._shown_s != self._begun_s:
            terminal.draw("")
