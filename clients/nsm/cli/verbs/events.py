"""`nsm events`: what happens in the supervisor."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, Any, cast

from nsm.cli import connection, terminal
from nsm.cli.options import EXIT_FAILED, EXIT_OK, Parser, whole_number
from nsm.cli.render.formats import visible
from nsm.cli.render.supervisor import short_time
from nsm.client.retry import RECONNECTED
from nsm.wire.messages import read

if TYPE_CHECKING:
    from nsm.wire.messages import Event
    from nsm.wire.telemetry import Occurrence

_SHORT_ID = 8

_EPILOG = """\
Sessions that start, are handed out and end, executions, clients, limits that were hit, what the
pool does; the last 4096 are kept. Nothing of code and its output is told: see `nsm logs`.

examples:
  nsm events -n 20
  nsm events -f --session work
  nsm events -f --json | jq -r 'select(.kind == "limit_hit").facts.what'
"""


def parser() -> Parser:
    """The verb's options."""
    parser = Parser(
        "events", "Show what happened in the supervisor lately. Starts no supervisor.", _EPILOG
    )
    parser.add_argument(
        "-f",
        "--follow",
        action="store_true",
        help="follow new events until Ctrl-C, which is no failure",
    )
    parser.add_argument(
        "-n", "--last", type=whole_number, metavar="N", help="only the last N of those until now"
    )
    parser.add_argument(
        "--session", metavar="SESSION", help="only those of an id, a name, or SCOPE/NAME"
    )
    parser.add_json("one object a line")
    return parser


def main(arguments: list[str]) -> int:
    """Show."""
    options = parser().parse_args(arguments)
    client = connection.connect()
    if client is None:
        return EXIT_FAILED
    wanted: dict[str, Any] = {"follow": options.follow}
    if options.last is not None:
        wanted["last"] = options.last
    if options.session is not None:
        wanted["session"] = options.session
    write = _json if options.json else _text

    def show(event: Event) -> None:
        if event.event == RECONNECTED:
            terminal.note("the supervisor was replaced; these are the events of its successor")
            wanted.pop("last", None)  # all that it has: it has just started
            return
        sys.stdout.write(write(event))
        if options.follow:
            sys.stdout.flush()

    with client:
        # One that is lost without a word has crashed: sessions may have outlived it.
        client.autostart = options.follow
        client.call("events", wanted, on_event=show, interruptible=True)
    return EXIT_OK


def _json(event: Event) -> str:
    import json  # noqa: PLC0415  # 2 ms that only --json pays

    if event.event == "missed":
        return json.dumps({"kind": "missed", **event.data}) + "\n"
    return json.dumps(event.data) + "\n"


def _text(event: Event) -> str:
    from nsm.wire import telemetry  # noqa: PLC0415  # not for --json

    if event.event == "missed":
        return f"({telemetry.missed_from_wire(event.data)} events were dropped meanwhile)\n"
    return line(read(telemetry.Occurrence, event.data))


def line(occurrence: Occurrence) -> str:
    """One event for people, on a line."""
    clock = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(occurrence.at))
    facts = " ".join(_fact(name, value) for name, value in occurrence.facts.items())
    words = f"{clock}  {occurrence.session or '-':8}  {occurrence.kind:21}  {facts}"
    return visible(words.rstrip()) + "\n"


def _fact(name: str, value: object) -> str:
    if name == "execution_id" and isinstance(value, str):
        return f"execution={_value(name, value[:_SHORT_ID])}"  # --json has all of it
    return f"{name}={_value(name, value)}"


def _value(name: str, value: object) -> str:
    if value is None:
        return "-"
    if name in ("duration_s", "seconds") and isinstance(value, float):
        return short_time(value)
    text = (
        ",".join(map(str, cast("list[object]", value))) if isinstance(value, list) else str(value)
    )
    return repr(text) if not text or any(c.isspace() or c in "='\"" for c in text) else text
