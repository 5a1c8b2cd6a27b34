"""`nsm logs` and `nsm events`: what was run in a session, and what happens in the supervisor."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, Any, cast

from nsm.cli import connection, terminal
from nsm.cli import options as cli
from nsm.cli.render.formats import short_time, visible
from nsm.cli.streams.resumed_transcript import Continued
from nsm.client.blocking import Client
from nsm.client.events import entries_to
from nsm.client.retry import RECONNECTED
from nsm.wire.code import logs
from nsm.wire.messages import read

if TYPE_CHECKING:
    from argparse import Namespace
    from collections.abc import Callable

    from nsm.cli.connection import TargetSession
    from nsm.wire.messages import Event
    from nsm.wire.telemetry import Occurrence

_EPILOG_OF_LOGS = """\
Sessions that have ended are found as well, by id (see `nsm ps --all`) or as the latest of a name.

`> ` stands before code, two spaces before standard output and displayed values, `! ` before
standard error. Control characters are shown as text, and colours are left out: --json has every
character.

examples:
  nsm logs work -n 3
  nsm logs work -f
  nsm logs work --json | jq -r 'select(.event == "execution").code'
  nsm logs work --ipynb > work.ipynb
"""


@cli.verb(
    "logs",
    "Show what was run in a session, by whom, and what came of it.",
    _EPILOG_OF_LOGS,
    cli.SESSION,
    cli.flag("-f --follow", "follow until the session ends, or until Ctrl-C (exit code 0)"),
    cli.value("-n --executions N", "only the last N executions", cli.whole_number),
    cli.either(
        cli.flag("--json", "print one object a line as JSON"),
        cli.flag("--ipynb", "print it as a Jupyter notebook"),
    ),
)
def _logs(options: Namespace) -> None:
    if options.ipynb and options.follow:
        raise cli.UsageError("a notebook is written as a whole, so --ipynb does not follow")
    with Client(autostart=False) as client:
        # One that is lost without a word has crashed: sessions may have outlived it.
        client.autostart = True
        found = connection.find(client, options.session)
        if options.json:
            _print_json(client, options, found)
        elif options.ipynb:
            _print_notebook(client, options, found)
        else:
            _print_text(client, options, found)


def _print_text(client: Client, options: Namespace, found: TargetSession | None) -> None:
    from nsm.cli.render.transcript import TranscriptPrinter  # noqa: PLC0415  # not for --json
    from nsm.wire import transcripts  # noqa: PLC0415  # likewise

    transcript, continued = TranscriptPrinter(), Continued()

    def show(event: Event) -> None:
        new = continued.take(event)
        entry = None if new is None else transcripts.entry(new.event, new.data)
        if entry is None:
            return
        if continued.gap:
            continued.gap = False
            terminal.note("the supervisor was replaced; something may be missing here")
        _out(transcript.take(entry), now=options.follow)

    end = read(transcripts.LogEnd, _read(client, options, show, found))
    _out(transcript.end(end), now=True)


def _print_json(client: Client, options: Namespace, found: TargetSession | None) -> None:
    import json  # noqa: PLC0415  # 2 ms that only --json pays

    continued = Continued()

    def show(event: Event) -> None:
        new = continued.take(event)
        if new is not None:
            _out(json.dumps({"event": new.event, **new.data}) + "\n", now=options.follow)

    end = _read(client, options, show, found)
    _out(json.dumps({"event": "end", **end}) + "\n", now=True)


def _print_notebook(client: Client, options: Namespace, found: TargetSession | None) -> None:
    from nsm.transcripts.document import Gatherer  # noqa: PLC0415  # only for --ipynb
    from nsm.transcripts.notebook import notebook  # noqa: PLC0415  # likewise

    gatherer = Gatherer()
    _read(client, options, entries_to(gatherer.take), found)
    terminal.out_json(notebook(gatherer.transcript()))


def _read(
    client: Client,
    options: Namespace,
    show: Callable[[Event], None],
    found: TargetSession | None,
) -> dict[str, Any]:
    """Read the transcript, and say whose session it is if the live one that the name means is
    another project's; this project may have an ended one."""

    def take(event: Event) -> None:
        nonlocal found
        if found is not None and event.event == "session":
            if event.data.get("id") == found.id:
                connection.tell_found(found)
            found = None
        show(event)

    call = logs(options.session, executions=options.executions, follow=options.follow)
    return client.ask(call, take, interruptible=True)


def _out(text: str, *, now: bool) -> None:
    sys.stdout.write(text)
    if now:  # else as Python buffers it
        sys.stdout.flush()


_SHORT_ID = 8

_EPILOG_OF_EVENTS = """\
Sessions that start, are handed out and end, executions, clients, limits that were hit, what the
pool does; the last 4096 are kept. Code and its output are in `nsm logs`.

examples:
  nsm events -n 20
  nsm events -f --session work
  nsm events -f --json | jq -r 'select(.kind == "limit_hit").facts.what'
"""


@cli.verb(
    "events",
    "Show what happened in the supervisor lately. Starts no supervisor.",
    _EPILOG_OF_EVENTS,
    cli.flag("-f --follow", "follow new events until Ctrl-C (exit code 0)"),
    cli.value("-n --last N", "only the last N of those until now", cli.whole_number),
    cli.value("--session SESSION", "only those of an id, a name, or SCOPE/NAME"),
    cli.as_json("one object a line"),
)
def _events(options: Namespace) -> None:
    wanted: dict[str, Any] = {"follow": options.follow}
    if options.last is not None:
        wanted["last"] = options.last
    if options.session is not None:
        wanted["session"] = options.session
    write = _event_json if options.json else _event_text

    def show(event: Event) -> None:
        if event.event == RECONNECTED:
            terminal.note("the supervisor was replaced; these are the events of its successor")
            wanted.pop("last", None)  # all that it has: it has just started
        else:
            _out(write(event), now=options.follow)

    with connection.running(code=cli.EXIT_FAILED) as client:
        # One that is lost without a word has crashed: sessions may have outlived it.
        client.autostart = options.follow
        client.call("events", wanted, on_event=show, interruptible=True)


def _event_json(event: Event) -> str:
    import json  # noqa: PLC0415  # 2 ms that only --json pays

    if event.event == "missed":
        return json.dumps({"kind": "missed", **event.data}) + "\n"
    return json.dumps(event.data) + "\n"


def _event_text(event: Event) -> str:
    from nsm.wire import telemetry  # noqa: PLC0415  # not for --json

    if event.event == "missed":
        return f"({telemetry.missed_from_wire(event.data)} events were dropped meanwhile)\n"
    return event_line(read(telemetry.Occurrence, event.data))


def event_line(occurrence: Occurrence) -> str:
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
