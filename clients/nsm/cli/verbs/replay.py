"""`nsm replay`: run a transcript's code again, and show what differs.

    [6] differs
    > total
      values:
    - 45
    + 46

What programs wrote stands behind marks, as in transcripts, and nothing in it drives a terminal.
"""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

from nsm.cli import connection, terminal
from nsm.cli import options as cli
from nsm.cli.render import formats
from nsm.cli.streams.escapes import colourless, harmless
from nsm.client.blocking import Client
from nsm.client.places import DEFAULT
from nsm.saves.history import History
from nsm.transcripts.document import TranscriptError, read_transcript
from nsm.wire.errors import BadRequestError, UnknownSessionError

if TYPE_CHECKING:
    from argparse import Namespace
    from collections.abc import Mapping

    from nsm.client.replays import ReplayedExecution, ReplayReport
    from nsm.transcripts.document import SessionTranscript

MAX_CODE_LINES = 5
MAX_COLUMNS = 200

_EPILOG = """\
TRANSCRIPT is a session, live or ended, or a file that `nsm logs SESSION --json` has written; `-`
is standard input. Its code runs in a new session, which ends with the replay unless --until or -s
keeps it. How code ends, what it prints on standard output, and values are compared, memory
addresses left out.

If the recorded session still lives, the new one sees and reaches the same. Otherwise, and always
for a file, it sees the current directory as with `nsm run`, and has no network. A file cannot
choose an environment that you have set up: name that with -e.

exit codes:
  0    all results are the same
  1    some differ, or could not be run
  125  nsm could not replay it to its end
  130  interrupted
  2    wrong usage

examples:
  nsm replay work
  nsm replay work --until 12 -s debug
  nsm logs work --json > work.jsonl; nsm replay work.jsonl -e science2
"""


@cli.verb(
    "replay",
    "Run a transcript's code in a new session, and show what differs.",
    _EPILOG,
    cli.operand("TRANSCRIPT", "a session, a file, or `-`"),
    cli.value("--until N", "stop after execution N, and keep the new session", cli.whole_number),
    cli.value("-e --env ENV", "run it in this environment"),
    cli.value("-s --session NAME", "keep the new session as NAME"),
    cli.project("mount DIR"),
    cli.network("what it may reach: off, full, or hosts separated by commas"),
    cli.as_json("one object a line"),
    failure=cli.EXIT_RUN_FAILED,
)
def _replay(options: Namespace) -> int:
    given = options.project or (None if options.no_project else DEFAULT)
    with Client(project=given) as client:
        transcript = _find(client, options.transcript)
        screen = _Lines() if options.json else _Text()
        screen.begin(transcript, options)
        report = client.replay(
            transcript,
            on_replayed=screen.show,
            env=options.env,
            until=options.until,
            name=options.session,
            keep=options.until is not None,
            project=given,
            network=options.network,
        )
        screen.end(report)
    if report.interrupted:
        return cli.EXIT_INTERRUPTED
    return cli.EXIT_OK if report.agrees else cli.EXIT_FAILED


def _find(client: Client, name: str) -> SessionTranscript:
    """The transcript that a name means: a file's if there is one, else a session's; an error if it
    may mean both, or means neither."""
    if name == "-":
        if not sys.stdin:  # closed by whoever started us
            raise TranscriptError("standard input is closed")
        return read_transcript(sys.stdin.buffer, "standard input")
    if not os.path.exists(name) or os.path.isdir(name):  # a pipe is a file, such as of <(...)
        try:
            connection.tell(client, name)
            return _of_session(client, name)
        except UnknownSessionError as error:
            raise UnknownSessionError(
                f"{error.message.rstrip('.')}, and no file of that name.",
                hint="`nsm ps --all` lists the sessions whose transcripts are kept.",
            ) from None
    if os.sep not in name and connection.find(client, name) is not None:
        raise BadRequestError(
            f"{name!r} is a session and a file.",
            hint=f"Name the file ./{name}, or the session by its id.",
        )
    with open(name, "rb") as file:
        return read_transcript(file, f"the file {name!r}")


def _of_session(client: Client, name: str) -> SessionTranscript:
    """The transcript of a session, which begins with that of its save if it was restored."""
    history = History(client, name)
    if history.missing:
        terminal.note(
            f"the session was restored, and what ran before is missing: {history.missing}"
        )
    return history.transcript()


class _Text:
    """Findings of a replay, for people."""

    def begin(self, transcript: SessionTranscript, options: Namespace) -> None:
        until: int | None = options.until
        numbers = [each.start.number for each in transcript.executions]
        count = len([number for number in numbers if until is None or number <= until])
        session = transcript.session
        if session.dropped:
            terminal.note(
                f"{formats.count(session.dropped, 'older execution')} no longer in the transcript; "
                "later code may depend on them"
            )
        if session.after_restart:
            terminal.note(
                "the transcript begins with a restart of the supervisor; what ran before is missing"
            )
        if not transcript.whole:
            terminal.note("the file was cut short: its last line is missing")
        jobs = len(transcript.items) - len(numbers)
        if jobs:
            terminal.note(f"{formats.count(jobs, 'job')} of the session not started again")
        _say(_title(transcript, count, options.env))

    def show(self, replayed: ReplayedExecution) -> None:
        _say(_execution(replayed))

    def end(self, report: ReplayReport) -> None:
        if report.interrupted:
            terminal.note("the replay was interrupted")
        _say(_summary(report))
        if report.kept:
            terminal.note(
                f"the session {report.name} is kept: `nsm attach {report.name}` continues in it"
            )


class _Lines:
    """Findings of a replay, one JSON object a line."""

    def begin(self, transcript: SessionTranscript, options: Namespace) -> None:
        del options
        session = transcript.session
        self._say("replay", session._asdict() | {"whole": transcript.whole})

    def show(self, replayed: ReplayedExecution) -> None:
        data = replayed._asdict()
        data["differences"] = [each._asdict() for each in replayed.differences]
        self._say("execution", data)

    def end(self, report: ReplayReport) -> None:
        self._say("end", report._asdict() | {"agrees": report.agrees})

    def _say(self, event: str, data: Mapping[str, object]) -> None:
        import json  # noqa: PLC0415  # 2 ms that only --json pays

        _say(json.dumps({"event": event, **data}))


def _say(text: str) -> None:
    terminal.out(text)
    sys.stdout.flush()  # the next one may take its time


def _title(transcript: SessionTranscript, executions: int, env: str | None = None) -> str:
    session = transcript.session
    name = session.id if session.name is None else f"{session.name} ({session.id})"
    other = f" in {_line(env)}" if env and env != session.env else ""
    return (
        f"replaying session {_line(name)}: {_line(session.env)}, "
        f"{formats.count(executions, 'execution')}{other}"
    )


def _execution(replayed: ReplayedExecution) -> str:
    text = f"[{replayed.number}] {replayed.status.replace('-', ' ')}"
    if replayed.why:
        text += f": {_line(replayed.why)}"
    lines = [text]
    if replayed.differences:
        lines += _code(replayed.code)
    for difference in replayed.differences:
        lines.append(f"  {difference.what}:")
        lines += [f"{line[:2]}{_line(line[2:])}" for line in difference.lines]
    return "\n".join(lines)


def _summary(report: ReplayReport) -> str:
    """The last line: how many of each."""
    counts = {
        "the same": report.same,
        "different" if report.differs != 1 else "differs": report.differs,
        "not compared": report.not_compared,
        "skipped": report.skipped,
    }
    told = [f"{number} {what}" for what, number in counts.items() if number]
    return ", ".join(told) or "nothing was replayed"


def _code(code: str) -> list[str]:
    lines = code.rstrip("\n").split("\n", MAX_CODE_LINES)
    shown = [f"> {_line(line)}" for line in lines[:MAX_CODE_LINES]]
    return [*shown, "> [...]"] if len(lines) > MAX_CODE_LINES else shown


def _line(text: str) -> str:
    safe = colourless(harmless(text[:MAX_COLUMNS])).replace("\r", "\\r").replace("\n", "\\n")
    return f"{safe}[...]" if len(text) > MAX_COLUMNS else safe
