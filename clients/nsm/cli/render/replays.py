"""Findings of a replay as text. Pure.

    [6] differs
    > total
      values:
    - 45
    + 46

What programs wrote stands behind marks, as in transcripts, and nothing in it drives a terminal.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from nsm.cli.render import formats
from nsm.cli.streams.escapes import colourless, harmless

if TYPE_CHECKING:
    from nsm.client.replays import ReplayedExecution, ReplayReport
    from nsm.transcripts.document import SessionTranscript

MAX_CODE_LINES = 5
MAX_COLUMNS = 200


def title(transcript: SessionTranscript, executions: int, env: str | None = None) -> str:
    """The first line: what is replayed, and in which environment if that is another one."""
    session = transcript.session
    name = session.id if session.name is None else f"{session.name} ({session.id})"
    other = f" in {_line(env)}" if env and env != session.env else ""
    return (
        f"replaying session {_line(name)}: {_line(session.env)}, "
        f"{formats.count(executions, 'execution')}{other}"
    )


def execution(replayed: ReplayedExecution) -> str:
    """Make the lines on one execution."""
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


def summary(report: ReplayReport) -> str:
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
