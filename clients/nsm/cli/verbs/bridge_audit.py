"""`nsm bridge audit`: who asked for which program, and what came of it."""

from __future__ import annotations

import os
import shlex
from typing import TYPE_CHECKING, cast

from nsm import paths
from nsm.cli import supervisor_program
from nsm.cli.render.formats import visible
from nsm.cli.verbs import audit
from nsm.wire.jobs import signal_name

if TYPE_CHECKING:
    import argparse

    from nsm.cli.audit_log import Line
    from nsm.cli.options import Subparsers

_EPILOG = """\
Each call has a line when it starts, which is on disk before the program is, and one when it ends
(none if nsm was killed meanwhile: then the program was, too); a refused one has one. In brackets is
the call's id, short, as --call takes it. Nothing is ever deleted.
"""

MAX_ARGUMENT_CHARS = 300
"""Largest size of all arguments for people; --json has all of them."""

_STOPPED = {
    "timeout": "timed out",
    "cancelled": "taken back",
    "shutdown": "stopped, since nsm ended",
}


def add(subparsers: Subparsers) -> None:
    """The action's options."""
    parser = subparsers.add("audit", "show who asked for what, and what came of it", _EPILOG)
    audit.add_choice(parser)
    parser.add_argument("--program", metavar="PROGRAM", help="of one program")
    parser.add_argument("--client", metavar="CLIENT", help="of one client, or of one scope")
    parser.add_argument("--call", metavar="ID", help="of one call: its id, or its beginning")
    parser.add_argument("--refused", action="store_true", help="those that were refused only")
    parser.add_argument("--json", action="store_true", help="print the lines as they are, JSON")


def main(options: argparse.Namespace) -> int:
    """Show."""

    def wanted(line: Line) -> bool:
        return (
            (options.program is None or line.get("program") == options.program)
            and (
                options.client is None or options.client in (line.get("client"), line.get("scope"))
            )
            and (options.call is None or _is_call(str(line.get("id")), options.call))
            and (not options.refused or line.get("event") == "refused")
        )

    path = paths.bridge_audit_path()
    if not os.path.lexists(path):
        supervisor_program.need_installed()  # in a box there never will be one
    return audit.show(options, path, wanted, words, counting_up=True)


def words(line: Line) -> str:
    """A line for people; nothing in it drives a terminal."""
    time = str(line["at"])[:19].replace("T", " ")
    who = f"{line.get('client', '-')} in {line.get('scope', '-')}"
    return visible(f"{time}Z  [{_short(str(line.get('id', '-')))}]  {who}  {_what(line)}")


def _short(call_id: str) -> str:
    """Its beginning, and of the calls of one MCP client, which share that, the number, too."""
    head, hyphen, number = call_id.rpartition("-")
    return f"{head[:8]}-{number}" if hyphen and head and number.isdecimal() else call_id[:8]


def _is_call(call_id: str, given: str) -> bool:
    return call_id.startswith(given) or _short(call_id) == given


def _what(line: Line) -> str:
    program = str(line.get("program", "-"))
    match line.get("event"):
        case "start":
            return f"starts {program}{_arguments(line)}"
        case "refused":
            return f"was refused {program}{_arguments(line)}: {line.get('reason')}"
        case "end" if line.get("why_stopped") == "not-started":
            return f"{program} was not started: {line.get('reason')}"
        case "end" if line.get("why_stopped") == "fault":
            return f"{program} ended: {line.get('reason')}"
        case "end":
            parts = [_outcome(line)]
            if isinstance(duration_s := line.get("duration_s"), int | float):
                parts.append(f"{duration_s:.2f} s")
            if left := line.get("left"):
                parts.append("1 process goes on" if left == 1 else f"{left} processes go on")
            return f"{program} ended: {', '.join(parts)}"
        case event:
            return f"{program}: {event}"


def _outcome(line: Line) -> str:
    stopped = line.get("why_stopped")
    if stopped is not None:
        return _STOPPED.get(str(stopped), str(stopped))
    number = line.get("signal")
    if not isinstance(number, int):
        return f"exit code {line.get('exit_code')}"
    return f"killed by {signal_name(number)}"


def _arguments(line: Line) -> str:
    arguments = line.get("arguments")
    if not isinstance(arguments, list):
        return ""
    text = "".join(f" {shlex.quote(str(each))}" for each in cast("list[object]", arguments))
    cut = len(text) > MAX_ARGUMENT_CHARS or "arguments_in_all" in line
    return f"{text[:MAX_ARGUMENT_CHARS]} …" if cut else text
