"""Executions and notes about jobs, as a transcript keeps them.

The output of a running execution is kept in order, its beginning and its latest part. All readers
share one record, and each has a position in it. A reader that falls too far behind gets the number
of characters that it missed.
"""

from __future__ import annotations

import sys
import time
from collections import deque
from collections.abc import Iterator, Mapping
from itertools import accumulate
from typing import Any, NamedTuple

from nsm.dataclass import dataclass, field, replace
from nsm.wire.errors import NsmError
from nsm.wire.results import split_place
from nsm.wire.transcripts import (
    DisplayedValue,
    ExecutionEnd,
    ExecutionStart,
    JobEnd,
    JobStart,
    OutputPiece,
)
from nsmd.model.values import Outcome, RunRequest, StreamName

HEAD_CHARS = 128 * 1024
TAIL_CHARS = 384 * 1024
"""Room for the latest output of both streams. The agent sends at most 128 KiB every 50 ms, so a
reader may stall for most of a second without missing anything.
"""

_PIECE_CHARS = 200
"""Memory of a piece beside its text: a flood of tiny pieces must not add up either."""

_AGREEING_CHARS = 64
"""Characters at a stream's end that must agree with the final text, if the stream is whole."""

_GAP_END = " bytes left out ...]\n"
"""End of the line that the agent puts where it leaves output out; the final text does
not have it.
"""


class _Piece(NamedTuple):
    stream: StreamName
    offset: int
    text: str


@dataclass(slots=True)
class ReaderPosition:
    """Position of a reader."""

    next: int = 0
    seen: dict[StreamName, int] = field(default_factory=dict[StreamName, int])


class LiveOutput:
    """Output of a running execution."""

    def __init__(self) -> None:
        self._head: list[_Piece] = []
        self._tail: deque[_Piece] = deque()
        self._head_chars = 0
        self._tail_chars = 0
        self._given_up = 0
        self._chars: dict[StreamName, int] = {"stdout": 0, "stderr": 0}
        self._ends: dict[StreamName, str] = {"stdout": "", "stderr": ""}

    def __iter__(self) -> Iterator[tuple[StreamName, str, int]]:
        position = ReaderPosition()
        while (piece := self.read(position)) is not None:
            yield piece
        yield from self.missing(position)

    @property
    def size_bytes(self) -> int:
        """Approximate size in memory."""
        return sum(sys.getsizeof(p.text) + _PIECE_CHARS for p in (*self._head, *self._tail))

    def put(self, stream: StreamName, text: str) -> None:
        """Add printed output."""
        if not text:
            return
        end = (self._ends[stream] + text[-_AGREEING_CHARS:])[-_AGREEING_CHARS:]
        self._ends[stream] = end.rpartition(_GAP_END)[2]
        self._keep(stream, text)

    def complete(self, stream: StreamName, final: str) -> None:
        """Add what the stream still lacks of its final text.

        The agent leaves out the last piece when the supervisor lags behind, and an agent without
        streaming sends none at all.
        """
        end = self._ends[stream]
        if end and final.endswith(end):
            return
        found = final.rfind(end) if end else -1
        _, mark, tail = final.rpartition(_GAP_END)
        if found >= 0:
            rest = final[found + len(end) :]
        elif end and mark:  # it ended in the part that the final text (head and tail) leaves out
            rest = f"\n[... some output left out ...]\n{tail}"
        else:
            rest = final
        if rest:
            self._keep(stream, rest)

    def read(self, position: ReaderPosition) -> tuple[StreamName, str, int] | None:
        """Read the next piece for a reader; None while there is none.

        Returns:
            The stream, the text, and how many characters of that stream are missing before it.
        """
        if position.next < len(self._head):
            piece = self._head[position.next]
        else:
            position.next = max(position.next, len(self._head) + self._given_up)
            index = position.next - len(self._head) - self._given_up
            if index >= len(self._tail):
                return None
            piece = self._tail[index]
        position.next += 1
        missing = piece.offset - position.seen.get(piece.stream, 0)
        position.seen[piece.stream] = piece.offset + len(piece.text)
        return piece.stream, piece.text, missing

    def missing(self, position: ReaderPosition) -> Iterator[tuple[StreamName, str, int]]:
        """Gaps that no later piece reports, for a reader that has read everything."""
        for stream, chars in self._chars.items():
            if chars > position.seen.get(stream, 0):
                yield stream, "", chars - position.seen.get(stream, 0)

    def _keep(self, stream: StreamName, text: str) -> None:
        end = self._chars[stream] = self._chars[stream] + len(text)
        text = text[-(TAIL_CHARS - _PIECE_CHARS) :]
        piece = _Piece(stream, end - len(text), text)
        size = len(text) + _PIECE_CHARS
        if not self._tail and self._head_chars + size <= HEAD_CHARS:
            self._head_chars += size
            self._head.append(piece)
            return
        self._tail_chars += size
        self._tail.append(piece)
        while self._tail_chars > TAIL_CHARS:
            self._tail_chars -= len(self._tail.popleft().text) + _PIECE_CHARS
            self._given_up += 1


MAX_CODE_CHARS = 64 * 1024
"""Kept beginning of one execution's code."""

MAX_ARGUMENTS_CHARS = 16 * 1024
"""Kept arguments of a script together."""

MAX_STREAM_CHARS = 256 * 1024
"""Kept head and tail of each stream of one execution."""

MAX_SHOWN_CHARS = 64 * 1024
"""Kept text of one execution's displayed values together."""

MAX_IMAGE_CHARS = 512 * 1024
"""Kept images of one execution together, as base64: some ten plots."""

_IMAGE_KINDS = ("image/png", "image/jpeg", "image/gif", "image/svg+xml")

_MAX_SHOWN = 100
_MAX_KINDS = 20
_MAX_KIND_CHARS = 100
"""Longest kept MIME type; a longer one tells a reader nothing."""

_RECORD_BYTES = 1000
_NOTE_BYTES = 500
"""Memory of a record or a note beside its texts."""

_EMPTY_TEXT_BYTES = sys.getsizeof("")


class JobEntry:
    """A note that a job was started or has ended.

    Attributes:
        size_bytes: approximate size in memory.
    """

    __slots__ = ("entry", "place", "size_bytes")

    ended = True

    def __init__(self, place: int, entry: JobStart | JobEnd) -> None:
        self.place = place
        self.entry = entry
        self.size_bytes = _NOTE_BYTES + _size(entry.command)

    def __repr__(self) -> str:
        return f"<JobEntry {self.place} {type(self.entry).__name__} {self.entry.job}>"


class TranscriptRecord:
    """One execution in a transcript. The transcript writes it, readers read it; it is complete with
    its answer.

    Attributes:
        live: streamed output while it runs; afterwards only if it has no outcome.
        size_bytes: approximate size in memory, once it has ended.
    """

    __slots__ = (
        "_answer",
        "_argv",
        "_argv_omitted",
        "_client",
        "_code",
        "_code_omitted",
        "_execution_id",
        "_reset",
        "_seconds",
        "_shown",
        "_skipped",
        "_started_at",
        "_stdin",
        "live",
        "number",
        "place",
        "size_bytes",
    )

    def __init__(self, place: int, number: int, execution_id: str, request: RunRequest) -> None:
        self.place = place
        self.number = number
        self.live: LiveOutput | None = None
        self.size_bytes = _RECORD_BYTES
        self._execution_id = execution_id
        self._client = request.client.name
        self._code = request.code[:MAX_CODE_CHARS]  # the code itself if it is short
        self._code_omitted = len(request.code) - len(self._code)
        sizes = accumulate(map(len, request.argv))
        kept = sum(size <= MAX_ARGUMENTS_CHARS for size in sizes)
        self._argv, self._argv_omitted = request.argv[:kept], len(request.argv) - kept
        self._stdin = request.stdin
        self._reset = request.reset
        self._started_at = time.time()
        self._answer: Outcome | NsmError | None = None
        self._seconds = 0.0
        self._shown: tuple[DisplayedValue, ...] = ()
        self._skipped: dict[StreamName, int] = {}

    def __repr__(self) -> str:
        state = "ended" if self.ended else "running"
        return f"<TranscriptRecord {self.number} {self._execution_id} {state}>"

    def began(self, at: float) -> None:
        """Note that it was sent earlier, at that Unix time."""
        self._started_at = at

    @property
    def ended(self) -> bool:
        """True once it has its answer."""
        return self._answer is not None

    def finish(self, answer: Outcome | NsmError, seconds: float) -> None:
        """Keep the answer within bounds."""
        self._seconds = seconds
        live, self.live = self.live, None
        if isinstance(answer, Outcome):
            if live is not None:  # readers still have it
                live.complete("stdout", answer.stdout)
                live.complete("stderr", answer.stderr)
            if answer.displays:
                self._shown = tuple(_shown(answer.displays))
            if answer.displays or max(len(answer.stdout), len(answer.stderr)) > MAX_STREAM_CHARS:
                answer = replace(
                    answer,
                    stdout=self._shortened("stdout", answer.stdout),
                    stderr=self._shortened("stderr", answer.stderr),
                    displays=(),
                )
            self.size_bytes += _size(answer.stdout) + _size(answer.stderr)
            if self._shown or answer.truncated or answer.restart_reason:
                self.size_bytes += _words_size(answer) + sum(map(_shown_size, self._shown))
        else:
            self.size_bytes += _error_size(answer)
            if live is not None:  # the only record of what it printed
                self.live = live
                self.size_bytes += live.size_bytes
        self.size_bytes += _size(self._code) + sum(map(sys.getsizeof, self._argv))
        self._answer = answer

    def start(self) -> ExecutionStart:
        """Return its first entry."""
        return ExecutionStart(
            execution_id=self._execution_id,
            number=self.number,
            client=self._client,
            code=self._code,
            code_omitted=self._code_omitted,
            started_at=self._started_at,
            stdin=self._stdin,
            reset=self._reset,
            argv=self._argv,
            argv_omitted=self._argv_omitted,
        )

    def drop_images(self) -> int:
        """Drop the images that its code displayed, and count them as left out."""
        before = sum(map(_shown_size, self._shown))
        self._shown = tuple(_without_images(shown) for shown in self._shown)
        freed = before - sum(map(_shown_size, self._shown))
        self.size_bytes -= freed
        return freed

    @property
    def has_images(self) -> bool:
        """True while it keeps images."""
        return any(kind in _IMAGE_KINDS for shown in self._shown for kind in shown.data)

    def piece(self, stream: StreamName, text: str, skipped: int = 0) -> OutputPiece:
        """Make an entry for printed output."""
        return OutputPiece(self._execution_id, stream, text, skipped)

    def output(self) -> Iterator[OutputPiece]:
        """Yield its output once it has ended: standard output first, since nobody knows
        the order.
        """
        if not isinstance(self._answer, Outcome):
            if self.live is not None:
                for piece in self.live:
                    yield self.piece(*piece)
            return
        texts: tuple[tuple[StreamName, str], ...] = (
            ("stdout", self._answer.stdout),
            ("stderr", self._answer.stderr),
        )
        for stream, text in texts:
            if (skipped := self._skipped.get(stream)) is not None:
                yield self.piece(stream, text[: MAX_STREAM_CHARS // 2])
                yield self.piece(stream, text[MAX_STREAM_CHARS // 2 :], skipped)
            elif text:
                yield self.piece(stream, text)

    def end(self) -> ExecutionEnd:
        """Return its last entry, once it has ended."""
        answer = self._answer
        if isinstance(answer, Outcome):
            return ExecutionEnd(
                execution_id=self._execution_id,
                exit_code=answer.exit_code,
                duration_s=answer.duration_s,
                timed_out=answer.timed_out,
                interrupted=answer.interrupted,
                interpreter_restarted=answer.interpreter_restarted,
                restart_reason=answer.restart_reason,
                displays=self._shown,
                truncated=dict(answer.truncated),
                error=None,
            )
        assert answer is not None, "an execution that runs has no end"
        return ExecutionEnd(
            execution_id=self._execution_id,
            exit_code=None,
            duration_s=self._seconds,
            timed_out=False,
            interrupted=False,
            interpreter_restarted=False,
            restart_reason="",
            displays=(),
            truncated={},
            error=answer,
        )

    def _shortened(self, stream: StreamName, text: str) -> str:
        skipped = len(text) - MAX_STREAM_CHARS
        if skipped <= 0:
            return text
        self._skipped[stream] = skipped
        half = MAX_STREAM_CHARS // 2
        return text[:half] + text[-half:]


def _shown(displays: tuple[Mapping[str, Any], ...]) -> Iterator[DisplayedValue]:
    """Yield displayed values, without long ones and those that are neither text nor images."""
    room = {"text": MAX_SHOWN_CHARS, "image": MAX_IMAGE_CHARS}
    for display in displays[:_MAX_SHOWN]:
        data: dict[str, str] = {}
        omitted: dict[str, int] = {}
        bundle, place = split_place(display)
        for kind, value in list(bundle.items())[:_MAX_KINDS]:
            if len(kind) > _MAX_KIND_CHARS:
                continue
            if place is not None and not kind.startswith("image/"):
                continue  # its text is in stdout
            sort = kind.partition("/")[0]
            kept = sort == "text" or kind in _IMAGE_KINDS
            if kept and isinstance(value, str) and len(value) <= room[sort]:
                data[kind] = value
                room[sort] -= len(value)
            else:
                omitted[kind] = len(value) if isinstance(value, str) else len(repr(value))
        yield DisplayedValue(data, omitted)


def _without_images(shown: DisplayedValue) -> DisplayedValue:
    images = {kind: len(data) for kind, data in shown.data.items() if kind in _IMAGE_KINDS}
    data = {kind: text for kind, text in shown.data.items() if kind not in images}
    return DisplayedValue(data, shown.omitted | images)


# Code chooses these texts, too, and may run a thousand times: all of them count.


def _words_size(outcome: Outcome) -> int:
    files = (truncation.file or "" for truncation in outcome.truncated.values())
    return _size(outcome.restart_reason) + sum(map(_size, files))


def _shown_size(shown: DisplayedValue) -> int:
    kinds = (*shown.data, *shown.omitted)
    return sum(map(_size, shown.data.values())) + sum(map(sys.getsizeof, kinds))


def _error_size(error: NsmError) -> int:
    texts = (error.message, error.hint, *map(str, error.data.values()))
    return sum(map(_size, texts))


def _size(text: str) -> int:
    return sys.getsizeof(text) - _EMPTY_TEXT_BYTES
