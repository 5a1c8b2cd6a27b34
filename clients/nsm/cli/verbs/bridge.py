"""`nsm bridge`: programs of the host that agents may start, for the people who describe them."""

from __future__ import annotations

import os
import socket
import sys
from contextlib import suppress
from typing import TYPE_CHECKING

from nsm.cli import supervisor_program, terminal
from nsm.cli.options import EXIT_OK, EXIT_RUN_FAILED, Parser
from nsm.cli.render import programs
from nsm.cli.streams.program_output import ShownOutput
from nsm.cli.verbs import bridge_audit
from nsm.client.blocking import Client
from nsm.client.bridge import run_request
from nsm.client.events import output_of
from nsm.client.retry import RECONNECTED
from nsm.hosts.place import client_socket
from nsm.wire.errors import NsmError
from nsm.wire.host import ProgramResult
from nsm.wire.messages import read

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Iterable

    from nsm.wire.host import ProgramRow
    from nsm.wire.messages import Event
    from nsm.wire.operation import OperationCall

CONNECT_S = 1.0
"""Time limit for connecting to a supervisor, where one is welcome but not needed."""

_EPILOG = """\
Each program is described by a file in ~/.config/nsm/tools; docs/how-to/bridge.md says how. What is
started here is checked, limited and written down as it is for an agent.

examples:
  nsm bridge ls
  nsm bridge help deploy
  nsm bridge run deploy staging
  nsm bridge check
  nsm bridge audit -f
"""

_RUN_EPILOG = """\
What follows PROGRAM is the program's, options included. Its standard input is empty; its output
comes line by line. Ctrl-C stops it, and all that it has started.

exit codes:
  the program's own, 128+N when signal N ended it, else
  124  timed out
  125  nsm did not start it, or stopped it
  130  interrupted
  2    wrong usage
"""


def parser() -> Parser:
    """The verb's options."""
    parser = Parser("bridge", "Show, try and check the programs that agents may start.", _EPILOG)
    subparsers = parser.add_actions()
    ls = subparsers.add("ls", "list the programs")
    ls.add_json("an object with the programs, and what is wrong with files")
    show = subparsers.add("help", "show the documentation of one")
    show.add_argument("program", metavar="PROGRAM", help="a program, see `nsm bridge ls`")
    show.add_json("an object with the program and its documentation")
    run = subparsers.add("run", "start one, and wait for its end", _RUN_EPILOG)
    run.add_json("the result, once the program has ended,")
    run.add_argument("program", metavar="PROGRAM", help="a program, see `nsm bridge ls`")
    run.add_argument("arguments", nargs="*", default=[], metavar="ARGUMENT", help="its arguments")
    check = subparsers.add(
        "check",
        "check the files that describe programs",
        "Exits 1 when one describes none; each is named with the line and the reason. Needs no\n"
        "supervisor, and looks at the files also where the bridge is off.",
    )
    check.add_json("an object with the programs, and what is wrong with files")
    bridge_audit.add(subparsers)
    return parser


def main(arguments: list[str]) -> int:
    """Do it."""
    own, given = _split(arguments)
    options = parser().parse_args(own)
    if options.action == "check":
        if not options.json:
            _tell_unset()
        return supervisor_program.replace_us(
            "--check-bridge", *(["--json"] if options.json else [])
        )
    if options.action == "audit":
        return bridge_audit.main(options)
    return _ACTIONS[options.action](options, given)


def _split(arguments: list[str]) -> tuple[list[str], list[str]]:
    """Split our arguments from those of the program for `run`: argparse would take options out of
    these."""
    if arguments[:1] != ["run"]:
        return arguments, []
    place = 1
    while place < len(arguments) and arguments[place].startswith("-"):
        place += 1
        if arguments[place - 1] == "--":
            break
    return arguments[: place + 1], arguments[place + 1 :]


def _ls(options: argparse.Namespace, _: list[str]) -> int:
    with Client() as client:
        report = client.bridge.programs()
    if options.json:
        terminal.out_json(report)
        return EXIT_OK
    terminal.out(programs.table(report, os.path.expanduser("~")))
    _tell(report.programs)
    for problem in report.problems:
        terminal.note(programs.problem(problem))
    return EXIT_OK


def _help(options: argparse.Namespace, _: list[str]) -> int:
    with Client() as client:
        found = client.bridge.help(options.program)
    if options.json:
        terminal.out_json(found)
    else:
        terminal.out(programs.documentation(found))
        _tell([found.program])
    return EXIT_OK


def _tell(rows: Iterable[ProgramRow]) -> None:
    for row in rows:
        if told := programs.unset(row):
            terminal.note(told)


def _tell_unset() -> None:
    """Name the variables that programs lack, if a supervisor runs: it alone knows its own. The
    check of the files needs none and starts none."""
    with suppress(NsmError, OSError), socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(CONNECT_S)
        connection.connect(client_socket())
        with Client(connection=connection) as client:
            _tell(client.bridge.programs().programs)


def _run(options: argparse.Namespace, given: list[str]) -> int:
    try:
        wanted = run_request(options.program, given, stream=not options.json)
        with Client() as client:
            return _Running(client, as_json=options.json).run(wanted)
    except BrokenPipeError:
        raise
    except (NsmError, OSError) as error:
        return terminal.report(error, EXIT_RUN_FAILED)


class _Running:
    """One program, shown while it runs."""

    def __init__(self, client: Client, *, as_json: bool) -> None:
        self._client = client
        self._as_json = as_json
        self._streams = {
            "stdout": (sys.stdout.buffer, ShownOutput()),
            "stderr": (sys.stderr.buffer, ShownOutput()),
        }

    def run(self, wanted: OperationCall[ProgramResult]) -> int:
        wire = self._client.call(wanted.op, wanted.args, on_event=self._show, interruptible=True)
        result = read(ProgramResult, wire)
        if self._as_json:
            terminal.out_json(wire)
        else:
            self._finish(result)
        return programs.exit_code(result)

    def _show(self, event: Event) -> None:
        if event.event == RECONNECTED:
            for _, told in self._streams.values():
                told.miss()
            if not self._as_json:
                terminal.note(
                    "the connection was lost; what the program writes now comes with its result"
                )
            return
        output = output_of(event)
        if output is not None:
            name, text = output
            skipped = event.data.get("skipped")
            _, told = self._streams[name]
            self._write(name, told.take(text, skipped if isinstance(skipped, int) else 0))

    def _finish(self, result: ProgramResult) -> None:
        finals = {
            "stdout": (result.stdout, result.stdout_omitted),
            "stderr": (result.stderr, result.stderr_omitted),
        }
        for name, (_, told) in self._streams.items():
            text, note = told.rest(*finals[name])
            self._write(name, text)
            if note:
                terminal.note(f"{name}: {note}; --json has its beginning and its end")
        for note in programs.notes(result):
            terminal.note(note)

    def _write(self, name: str, text: str) -> None:
        if text:
            stream, _ = self._streams[name]
            stream.write(text.encode())
            stream.flush()


_ACTIONS: dict[str, Callable[[argparse.Namespace, list[str]], int]] = {
    "ls": _ls,
    "help": _help,
    "run": _run,
}
