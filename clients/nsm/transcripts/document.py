"""`SessionTranscript`: what ran in one session, as a value.

`Gatherer` makes it of the entries of `logs`. `read_transcript` makes it of the lines that
`nsm logs --json` writes; they may come from anywhere, so everything about them is bounded and
checked, and nothing in them decides where code runs.
"""

from __future__ import annotations

import json
import math
from typing import TYPE_CHECKING, cast

from nsm.wire import transcripts
from nsm.wire.errors import NsmError
from nsm.wire.frames import RemoteProtocolError
from nsm.wire.transcripts import ExecutionEnd, ExecutionStart, JobStart, OutputPiece, SessionStart
from nsm.wire.tuples import NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import IO, Any

    from nsm.wire.transcripts import Entry, StreamName

MAX_FILE_BYTES = 64 * 1024 * 1024
"""Room for twice the 4 MiB that are kept of a session, at six bytes of JSON for each byte."""

MAX_EXECUTIONS = 20_000
"""A supervisor keeps 4,000 of a session; the file of `nsm logs --follow` may have more."""

MAX_NUMBER = 10**9
MAX_SECONDS = 1e9
INTERPRETERS = ("python", "bash", "node")


class TranscriptError(NsmError):
    """A file is not a transcript that nsm can read."""


class RecordedExecution(NamedTuple):
    """One execution of a transcript; its end is None if it had not ended."""

    start: ExecutionStart
    pieces: tuple[OutputPiece, ...]
    end: ExecutionEnd | None

    def printed(self, stream: StreamName) -> list[str]:
        """Return what it printed, in as many pieces as there are gaps, and one more."""
        pieces: list[list[str]] = [[]]
        for piece in self.pieces:
            if piece.stream == stream:
                if piece.skipped:
                    pieces.append([])
                pieces[-1].append(piece.text)
        return ["".join(texts) for texts in pieces]


class SessionTranscript(NamedTuple):
    """Record of one session: its executions and the starts of its jobs, in order.

    If it comes from a file, somebody may have made it up. It is whole if nothing is missing at its
    end; a file may have been cut short."""

    session: SessionStart
    items: tuple[RecordedExecution | JobStart, ...]
    from_file: bool = False
    whole: bool = True

    @property
    def executions(self) -> tuple[RecordedExecution, ...]:
        """Executions of the session."""
        return tuple(item for item in self.items if isinstance(item, RecordedExecution))


class Gatherer:
    """Entries of one transcript, as they come; an error (`TranscriptError`) if they make none."""

    def __init__(self) -> None:
        self._session: SessionStart | None = None
        self._items: list[RecordedExecution | JobStart] = []
        self._running: ExecutionStart | None = None
        self._pieces: list[OutputPiece] = []

    def take(self, entry: Entry) -> None:
        """Add an entry. A session's start begins again: the connection may have been lost."""
        if isinstance(entry, SessionStart):
            self._session, self._items = entry, []
            self._running, self._pieces = None, []
        elif self._session is None:
            raise TranscriptError("it does not begin with a session")
        elif isinstance(entry, ExecutionStart):
            self._end(None)
            self._running = entry
        elif isinstance(entry, JobStart):
            self._items.append(entry)
        elif isinstance(entry, OutputPiece | ExecutionEnd):
            if self._running is None or entry.execution_id != self._running.execution_id:
                raise TranscriptError("it has output or the end of an execution that did not begin")
            if isinstance(entry, OutputPiece):
                self._pieces.append(entry)
            else:
                self._end(entry)
        if len(self._items) > MAX_EXECUTIONS:
            raise TranscriptError(f"it has more than {MAX_EXECUTIONS:,} executions")

    def transcript(self, *, from_file: bool = False, whole: bool = True) -> SessionTranscript:
        """Return all that was taken."""
        if self._session is None:
            raise TranscriptError("it is empty")
        self._end(None)
        return SessionTranscript(self._session, tuple(self._items), from_file, whole)

    def _end(self, end: ExecutionEnd | None) -> None:
        if self._running is not None:
            self._items.append(RecordedExecution(self._running, tuple(self._pieces), end))
        self._running, self._pieces = None, []


def read_transcript(source: IO[bytes], name: str = "it") -> SessionTranscript:
    """Read what `nsm logs --json` wrote; TranscriptError, with the file's name, if that is
    something else."""
    data = source.read(MAX_FILE_BYTES + 1)
    if len(data) > MAX_FILE_BYTES:
        raise _no_transcript(name, f"it is larger than {MAX_FILE_BYTES >> 20} MiB")
    gatherer = Gatherer()
    try:
        whole = _gather(data, gatherer)
        return gatherer.transcript(from_file=True, whole=whole)
    except TranscriptError as error:
        raise _no_transcript(name, error.message) from None


def _gather(data: bytes, gatherer: Gatherer) -> bool:
    """Take the events of a file; returns whether its last line is there."""
    last = 0
    ended = False
    for line, event in _events(data):
        if ended:
            raise TranscriptError(f"line {line} follows its end")
        kind = event["event"]
        ended = kind == "end"
        try:
            entry = transcripts.entry(kind, event) if isinstance(kind, str) else None
            if entry is not None:  # else it is of a later version
                last = _check(entry, last)
                gatherer.take(entry)
        except (RemoteProtocolError, TranscriptError, ValueError) as error:
            raise TranscriptError(f"{_why(error)} (line {line})") from None
    return ended


def _events(data: bytes) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield the objects of the lines, each with the number of its line."""
    for number, line in enumerate(data.split(b"\n"), 1):
        if not line.strip():
            continue
        try:
            event = json.loads(line.decode(), parse_constant=_refuse)
        except (ValueError, RecursionError):
            event = None
        if not isinstance(event, dict) or "event" not in event:
            raise TranscriptError(f"line {number} is not an event")
        yield number, cast("dict[str, Any]", event)


def _refuse(constant: str) -> float:
    message = f"{constant} is not a number"
    raise ValueError(message)


def _check(entry: Entry, last: int) -> int:
    """Check what types do not say, and return the number of the last execution."""
    match entry:
        case SessionStart():
            _check_text(entry.id, entry.name or "", entry.env, entry.client, entry.scope)
            _check_numbers(entry.dropped, seconds=entry.started_at * 1e-3)
            if last:
                raise ValueError("it has two sessions")
            if entry.interpreter not in INTERPRETERS:
                message = f"its interpreter is {entry.interpreter[:40]!r}"
                raise ValueError(message)
        case ExecutionStart():
            _check_text(entry.code, entry.client, entry.execution_id, *entry.argv)
            _check_numbers(
                entry.number,
                entry.code_omitted,
                entry.argv_omitted,
                seconds=entry.started_at * 1e-3,
            )
            if entry.number <= last:
                raise ValueError("the numbers of its executions do not rise")
            return entry.number
        case ExecutionEnd():
            _check_numbers(abs(entry.exit_code or 0), seconds=entry.duration_s)
        case OutputPiece():
            _check_numbers(entry.skipped, seconds=0.0)
        case JobStart():
            _check_text(entry.job, entry.command)
        case _:
            pass
    return last


def _check_text(*texts: str) -> None:
    for text in texts:
        try:
            text.encode()
        except UnicodeEncodeError:
            raise ValueError("it has half a character") from None


def _check_numbers(*numbers: int, seconds: float) -> None:
    if not all(0 <= number <= MAX_NUMBER for number in numbers):
        raise ValueError("it has a number that cannot be")
    if not (math.isfinite(seconds) and 0 <= seconds <= MAX_SECONDS):
        raise ValueError("it has a time that cannot be")


def _why(error: Exception) -> str:
    if isinstance(error, RemoteProtocolError):
        return error.message.replace("the supervisor sent", "it has", 1)
    return str(error)


def _no_transcript(name: str, why: str) -> TranscriptError:
    return TranscriptError(
        f"{name} is not a transcript: {why}",
        hint="`nsm logs SESSION --json > FILE` writes one.",
    )
