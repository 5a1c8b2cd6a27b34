"""`nsm bridge`: programs of the host that agents may start, for the people who describe them."""

from __future__ import annotations

import os
import socket
import sys
from contextlib import suppress
from typing import TYPE_CHECKING

from nsm.cli import connection, terminal
from nsm.cli import options as cli
from nsm.cli.render import formats
from nsm.cli.streams.live_output import ShownOutput
from nsm.cli.verbs.audit import AS_IT_IS, CHOICE, audit_of_bridge
from nsm.client.blocking import Client
from nsm.client.events import output_of
from nsm.client.host import run_request
from nsm.client.retry import RECONNECTED
from nsm.hosts.place import client_socket
from nsm.wire.errors import NsmError
from nsm.wire.host import ProgramResult
from nsm.wire.jobs import signal_name
from nsm.wire.messages import read

if TYPE_CHECKING:
    from argparse import Namespace
    from collections.abc import Iterable

    from nsm.cli.options import Parser
    from nsm.wire.host import ProgramHelp, ProgramProblem, ProgramRow, ProgramsReport
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
_AUDIT_EPILOG = """\
A call has a line for its start, written before the program starts, and one for its end. There is no
end if nsm was killed meanwhile, and the program with it. A refused call has one line. In brackets
is the beginning of the call's id, for --call. nsm never deletes lines.
"""

_PROGRAM = cli.operand("PROGRAM", "a program, see `nsm bridge ls`")


def _parse(parser: Parser, arguments: list[str]) -> Namespace:
    """Read our arguments, and set those of the program for `run` apart: argparse would take
    options out of these."""
    place = len(arguments)
    if arguments[:1] == ["run"]:
        place = 1
        while place < len(arguments) and arguments[place].startswith("-"):
            place += 1
            if arguments[place - 1] == "--":
                break
        place += 1
    options = parser.parse_args(arguments[:place])
    options.given = arguments[place:]
    return options


_bridge = cli.verb(
    "bridge", "Show, try and check the programs that agents may start.", _EPILOG, parse=_parse
)


@_bridge.action(
    "ls",
    "list the programs",
    "",
    cli.as_json("an object with the programs, and what is wrong with files"),
)
def _ls(options: Namespace) -> None:
    with Client() as client:
        report = client.bridge.programs()
    terminal.answer(options, report, lambda: _table(report, os.path.expanduser("~")))
    if not options.json:
        _tell_unset(report.programs)
        for problem in report.problems:
            terminal.note(_problem(problem))


@_bridge.action(
    "help",
    "show the documentation of one",
    "",
    _PROGRAM,
    cli.as_json("an object with the program and its documentation"),
)
def _help(options: Namespace) -> None:
    with Client() as client:
        found = client.bridge.help(options.program)
    terminal.answer(options, found, lambda: _documentation(found))
    if not options.json:
        _tell_unset([found.program])


@_bridge.action(
    "run",
    "start one, and wait for its end",
    _RUN_EPILOG,
    cli.as_json("the result, once the program has ended,"),
    _PROGRAM,
    cli.operand("[ARGUMENT ...]", "its arguments", dest="arguments"),
    failure=cli.EXIT_RUN_FAILED,
)
def _run(options: Namespace) -> int:
    wanted = run_request(options.program, options.given, stream=not options.json)
    with Client() as client:
        return _Running(client, as_json=options.json).run(wanted)


@_bridge.action(
    "check",
    "check the files that describe programs",
    "Names each mistake with its line and the reason, and exits 1 if there is one. Needs no\n"
    "supervisor, and works while the bridge is off.",
    cli.as_json("an object with the programs, and what is wrong with files"),
)
def _check(options: Namespace) -> int:
    if not options.json:
        # The supervisor, if one runs, alone knows the variables that programs lack. The check of
        # the files needs none and starts none.
        with suppress(NsmError, OSError), socket.socket(socket.AF_UNIX) as link:
            link.settimeout(CONNECT_S)
            link.connect(client_socket())
            with Client(connection=link) as client:
                _tell_unset(client.bridge.programs().programs)
    return connection.become_supervisor("--check-bridge", *(["--json"] if options.json else []))


_bridge.action(
    "audit",
    "show who asked for what, and what came of it",
    _AUDIT_EPILOG,
    *CHOICE,
    cli.value("--program PROGRAM", "of one program"),
    cli.value("--client CLIENT", "of one client, or of one scope"),
    cli.value("--call ID", "of one call: its id, or its beginning"),
    cli.flag("--refused", "those that were refused only"),
    AS_IT_IS,
)(audit_of_bridge)


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
        return _exit_code(result)

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
        for note in _notes(result):
            terminal.note(note)

    def _write(self, name: str, text: str) -> None:
        if text:
            stream, _ = self._streams[name]
            stream.write(text.encode())
            stream.flush()


_OFF = (
    "The bridge is off. `[bridge] enabled = true` in config.toml turns it on, and "
    "`nsm reload --config` has that take effect."
)


_NONE = "No programs. A file in ~/.config/nsm/tools describes each (docs/how-to/bridge.md)."


def _table(report: ProgramsReport, home: str) -> str:
    if not report.programs:
        return _NONE if report.enabled else _OFF
    return formats.table(
        "NAME LIMIT ARGUMENTS COMMAND DESCRIPTION".split(),
        (
            (
                row.name,
                formats.limit(row.timeout_s),
                _arguments(row),
                "-" if row.command is None else formats.below_home(row.command, home),
                row.description,
            )
            for row in report.programs
        ),
        right="LIMIT",
    )


def _arguments(row: ProgramRow) -> str:
    many = (
        "any" if row.max_args is None else "none" if row.max_args == 0 else f"up to {row.max_args}"
    )
    return f"{many}, options too" if row.allow_options and row.max_args != 0 else many


def _problem(found: ProgramProblem) -> str:
    """Explain why a file describes no program: where, and what was found."""
    where = found.source if found.line is None else f"{found.source}:{found.line}"
    return f"{formats.visible(where)}: {formats.visible_lines(found.reason)}"


def _tell_unset(rows: Iterable[ProgramRow]) -> None:
    """Name the variables of its file that a program lacks."""
    for row in rows:
        if row.unset:
            names = formats.visible(", ".join(row.unset))
            terminal.note(
                f"{row.name}: the supervisor lacks variables that `env` names: {names}. "
                "docs/how-to/bridge.md says where to set it"
            )


def _documentation(found: ProgramHelp) -> str:
    return formats.visible_lines(found.documentation.strip("\n") or found.program.description)


def _exit_code(result: ProgramResult) -> int:
    match result.why_stopped:
        case "timeout":
            return cli.EXIT_TIMED_OUT
        case "cancelled":
            return cli.EXIT_INTERRUPTED
        case None if result.signal is not None:
            return 128 + result.signal
        case None if result.exit_code is not None:
            return result.exit_code & 0xFF or (cli.EXIT_FAILED if result.exit_code else 0)
        case _:
            return cli.EXIT_RUN_FAILED


def _notes(result: ProgramResult) -> list[str]:
    told: list[str] = []
    match result.why_stopped:
        case "timeout":
            told.append(f"timed out after {result.timeout_s:g} s")
        case "cancelled":
            told.append("interrupted")
        case None if result.signal is not None:
            told.append(f"killed by {signal_name(result.signal)}")
        case None:
            pass
        case _:
            told.append("stopped: the supervisor ends")
    if result.left:
        who = "process that it left goes" if result.left == 1 else "processes that it left go"
        told.append(f"{result.left} {who} on")
    return told
