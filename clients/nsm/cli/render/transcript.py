"""Transcripts of sessions as text for people. Pure, but for the time zone.

    [7] 2026-11-21 14:03:12 claude-code
    > for n in range(2):
    >     print(n)
      0
      1
    [0.01 s]

Everything that programs wrote stands behind two characters, so that no output can be taken for
another execution, or for the end of its own: ``> `` before code, two spaces before standard output
and displayed values, ``! `` before standard error. It goes through `nsm.cli.streams.escapes` and
loses its colours: what a model had printed must neither drive a person's terminal nor hide on it.
"""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING, assert_never

from nsm.cli.render import formats
from nsm.cli.streams.escapes import Harmless, colourless, harmless
from nsm.wire.sessions import FORKED_FROM
from nsm.wire.transcripts import (
    OWN_CODE,
    ExecutionEnd,
    ExecutionStart,
    FreshRun,
    JobEnd,
    JobStart,
    OutputPiece,
    SessionStart,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from nsm.wire.transcripts import DisplayedValue, Entry, LogEnd, StreamName

CODE, STDOUT, STDERR = "> ", "  ", "! "

JOB_COLUMNS = 60
"""Longest shown arguments of a job at its end."""


class TranscriptPrinter:
    """The text of entries as they come; knows where the lines of output stand."""

    def __init__(self) -> None:
        self._texts: dict[StreamName, _Text] = {}
        self._open: StreamName | None = None  # whose line has not ended

    def take(self, entry: Entry) -> str:
        """The text of the next entry."""
        match entry:
            case SessionStart():
                return session(entry)
            case ExecutionStart():
                return f"\n{header(entry)}{code(entry)}"
            case OutputPiece():
                return self._output(entry)
            case ExecutionEnd():
                return self._ended() + outcome(entry)
            case JobStart():
                return f"{self._line_end()}\n{job_header(entry)}{job_command(entry)}"
            case JobEnd():
                return self._line_end() + job_outcome(entry)
            case FreshRun():
                return self._line_end() + fresh_run(entry)
        assert_never(entry)

    def end(self, end: LogEnd) -> str:
        """Make the text after the last entry: how the session ended, if it has."""
        text = self._ended()
        if end.end_reason is not None:
            text += f"\nended: {one_line(end.end_reason)}\n"
        return text

    def _output(self, piece: OutputPiece) -> str:
        text = self._texts.setdefault(piece.stream, _Text())
        said = ""
        if piece.skipped:
            said = self._lines(piece.stream, text.end()) + self._line_end()
            said += f"[{piece.skipped:,} characters left out]\n"
        return said + self._lines(piece.stream, text.take(piece.text))

    def _lines(self, stream: StreamName, text: str) -> str:
        """Text behind its marks, from wherever the line stands."""
        if not text:
            return ""
        mark = STDOUT if stream == "stdout" else STDERR
        before = self._line_end() if self._open != stream else ""
        first = "" if self._open == stream else mark
        self._open = None if text.endswith("\n") else stream
        body = text.removesuffix("\n").replace("\n", f"\n{mark}")
        return before + first + body + ("" if self._open else "\n")

    def _ended(self) -> str:
        """Return the text held back so far, and the end of the line."""
        texts, self._texts = self._texts, {}
        return "".join(self._lines(*item) for item in _rests(texts)) + self._line_end()

    def _line_end(self) -> str:
        was_open, self._open = self._open, None
        return "\n" if was_open else ""


class _Text:
    """One stream's text without what a terminal would act on."""

    def __init__(self) -> None:
        self._harmless = Harmless()
        self._return = ""  # a carriage return that may belong to the next line feed

    def take(self, text: str) -> str:
        text = self._return + self._harmless.take(text)
        self._return = "\r" if text.endswith("\r") else ""
        return _plain(text.removesuffix("\r"))

    def end(self) -> str:
        rest, self._return = self._return + self._harmless.end(), ""
        return _plain(rest)


def _rests(texts: dict[StreamName, _Text]) -> Iterator[tuple[StreamName, str]]:
    for stream, text in texts.items():
        yield stream, text.end()


def session(start: SessionStart) -> str:
    """Make the title of the transcript."""
    name = f"{one_line(start.name)} ({start.id})" if start.name is not None else start.id
    text = (
        f"session {name}: {one_line(start.env)}, opened by {one_line(start.client)}, "
        f"{formats.date(start.started_at)}\n"
    )
    if start.dropped:
        text += f"({formats.count(start.dropped, 'older execution')} no longer kept)\n"
    if start.after_restart:
        text += "(what ran before the supervisor was restarted is not kept)\n"
    if original := start.labels.get(FORKED_FROM):
        text += f"(forked from session {one_line(original)}, which has what ran before)\n"
    elif save := start.labels.get("restored-from"):
        text += f"(restored from {one_line(save)}, which has what ran before; nsm replay runs it)\n"
    return text


def header(start: ExecutionStart) -> str:
    """The line above an execution: its number, when, and who sent it."""
    return f"[{start.number}] {formats.date(start.started_at)} {one_line(start.client)}\n"


def code(start: ExecutionStart) -> str:
    """The code behind its marks; of nsm's own code the line that says what it does."""
    if start.code.startswith(OWN_CODE) and _is_own(start.code):
        return _marked(CODE, harmless(start.code.partition("\n")[0]))
    text = _marked(CODE, harmless(start.code))
    if start.code_omitted:
        text += f"[{start.code_omitted:,} characters of code left out]\n"
    if given := start.argv[1:]:
        text += f"[arguments: {one_line(shlex.join(given))}]\n"
    if start.argv_omitted:
        text += f"[{start.argv_omitted:,} arguments left out]\n"
    return text


def _is_own(code: str) -> bool:
    """Return whether nsm's programs for saves run this. Code of others may begin like that."""
    from nsm.saves import interpreters  # noqa: PLC0415  # few transcripts have it

    return any(
        code == interpreters.code(interpreter, action)
        for interpreter in interpreters.INTERPRETERS
        for action in ("save", "restore")
    )


def outcome(end: ExecutionEnd) -> str:
    """Displayed values, and the line below an execution: how it ended."""
    shown = "".join(display(one) for one in end.displays)
    return f"{shown}[{'; '.join(_facts(end))}]\n"


def job_header(start: JobStart) -> str:
    """The line above a job: its number, when, and who started it."""
    return f"[job {start.job}] {formats.date(start.started_at)} {one_line(start.client)}\n"


def job_command(start: JobStart) -> str:
    """The command or code of a job, behind its marks."""
    text = _marked(CODE, harmless(start.command))
    if start.command_omitted:
        text += f"[{start.command_omitted:,} characters left out]\n"
    return text


def job_outcome(end: JobEnd) -> str:
    """The line on the end of a job."""
    facts = {"timeout": ["timed out"], "stopped": ["stopped"]}.get(end.outcome, [])
    if end.signal:
        facts = [*facts, f"ended by signal {end.signal}"]
    elif end.exit_code:
        facts = [*facts, f"exit code {end.exit_code}"]
    if end.output_bytes:
        facts = [*facts, f"{formats.size(end.output_bytes)} of output"]
    command = formats.shortened(one_line(end.command), JOB_COLUMNS)
    return f"[job {end.job} ({command}): {'; '.join([*facts, _seconds(end.duration_s)])}]\n"


def fresh_run(run: FreshRun) -> str:
    """The line on programs that ran in fresh interpreters."""
    each = "" if run.programs == 1 else ", each"
    programs = f"{formats.count(run.programs, 'program')}{each} in a fresh interpreter"
    of_these = f", {run.not_run:,} of them not run" if run.not_run else ""
    facts = [f"{run.failed:,} failed{of_these}"] if run.failed else []
    return f"[{programs}: {'; '.join([*facts, _seconds(run.duration_s)])}]\n"


def display(shown: DisplayedValue) -> str:
    """A displayed value: its plainest text, and sizes of its images and of what was left out."""
    texts = [kind for kind in shown.data if not kind.startswith("image/")]
    kind = "text/plain" if "text/plain" in texts else next(iter(texts), None)
    text = "" if kind is None else _marked(STDOUT, harmless(shown.data[kind]))
    images = {kind: len(data) for kind, data in shown.data.items() if kind not in texts}
    for omitted, chars in (images | shown.omitted).items():
        if omitted.startswith("image/") or kind is None:
            text += f"{STDOUT}[{one_line(omitted)}, {chars:,} characters]\n"
    return text


def one_line(text: str) -> str:
    """A name or a reason on one line."""
    return formats.visible(text)


def _facts(end: ExecutionEnd) -> list[str]:
    facts: list[str] = []
    if end.timed_out:
        facts.append("timed out")
    if end.interrupted:
        facts.append("interrupted")
    if end.exit_code:
        facts.append(f"exit code {end.exit_code}")
    if end.error is not None:
        facts.append(one_line(str(end.error)))
    if end.interpreter_restarted:
        why = one_line(end.restart_reason).rstrip(".")
        facts.append(f"interpreter restarted{': ' if why else ''}{why}")
    for stream, truncation in sorted(end.truncated.items()):
        where = (
            "" if truncation.file is None else f": {truncation.where(one_line(truncation.file))}"
        )
        missing = formats.size(truncation.omitted_bytes)
        facts.append(f"{missing} of {stream} left out of the answer{where}")
    return [*facts, _seconds(end.duration_s)]


def _marked(mark: str, text: str) -> str:
    """Lines behind a mark; at least one."""
    body = _plain(text).removesuffix("\n").replace("\n", f"\n{mark}")
    return f"{mark}{body}\n"


def _plain(text: str) -> str:
    """Text that went through `Harmless`, without what is left of the terminal's own in it."""
    return colourless(text).replace("\r\n", "\n").replace("\r", "\\r")


def _seconds(seconds: float) -> str:
    return f"{seconds:.2f} s" if seconds < 60 else formats.duration(seconds)
