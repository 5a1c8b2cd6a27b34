"""Executions and notes about jobs, as a transcript keeps them.

The output of a running execution is kept in order, its beginning and its latest part. All readers
share one record, and each has a position in it. A reader that falls too far behind gets the number
of characters that it missed.
"""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Iterator, Mapping
from itertools import accumulate
from typing import Any

from nsm.dataclass import dataclass, field
from nsm.wire.code import PLACE, split_place
from nsm.wire.errors import NsmError
from nsm.wire.transcripts import (
    DisplayedValue,
    ExecutionEnd,
    ExecutionStart,
    FreshRun,
    JobEnd,
    JobStart,
    OutputPiece,
)
from nsm.wire.tuples import NamedTuple
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


class JobEntry:
    """A note beside executions: a job was started or has ended, or programs have.

    Attributes:
        size_bytes: approximate size in memory.
    """

    __slots__ = ("entry", "place", "size_bytes")

    ended = True

    def __init__(self, place: int, entry: JobStart | JobEnd | FreshRun) -> None:
        self.place = place
        self.entry = entry
        self.size_bytes = _NOTE_BYTES + (
            0 if isinstance(entry, FreshRun) else sys.getsizeof(entry.command)
        )

    def __repr__(self) -> str:
        return f"<JobEntry {self.place} {type(self.entry).__name__}>"


class TranscriptRecord:
    """One execution in a transcript. The transcript writes it, readers read it; it is complete with
    its last entry.

    Attributes:
        start, end: its first and its last entry; None until it has its answer.
        live: streamed output while it runs; afterwards only if it has no outcome.
        size_bytes: approximate size in memory, once it has ended.
    """

    __slots__ = ("_printed", "end", "live", "place", "size_bytes", "start")

    def __init__(
        self, place: int, number: int, execution_id: str, request: RunRequest, started_at: float
    ) -> None:
        self.place = place
        self.live: LiveOutput | None = None
        self.size_bytes = _RECORD_BYTES
        code = request.code[:MAX_CODE_CHARS]  # the code itself if it is short
        sizes = accumulate(map(len, request.argv))
        kept = sum(size <= MAX_ARGUMENTS_CHARS for size in sizes)
        self.start = ExecutionStart(
            execution_id=execution_id,
            number=number,
            client=request.client.name,
            code=code,
            code_omitted=len(request.code) - len(code),
            started_at=started_at,
            stdin=request.stdin,
            reset=request.reset,
            argv=request.argv[:kept],
            argv_omitted=len(request.argv) - kept,
        )
        self.end: ExecutionEnd | None = None
        self._printed: tuple[OutputPiece, ...] = ()

    def __repr__(self) -> str:
        state = "ended" if self.ended else "running"
        return f"<TranscriptRecord {self.start.number} {self.start.execution_id} {state}>"

    @property
    def ended(self) -> bool:
        """True once it has its answer."""
        return self.end is not None

    def finish(self, answer: Outcome | NsmError, seconds: float) -> None:
        """Keep the answer within bounds."""
        texts = [self.start.code, *self.start.argv]
        if isinstance(answer, NsmError):
            self.end = ExecutionEnd(
                execution_id=self.start.execution_id,
                exit_code=None,
                duration_s=seconds,
                timed_out=False,
                interrupted=False,
                interpreter_restarted=False,
                restart_reason="",
                displays=(),
                truncated={},
                error=answer,
            )
            texts += answer.message, answer.hint, *map(str, answer.data.values())
            if self.live is not None:  # the only record of what it printed
                self.size_bytes += self.live.size_bytes
        else:
            if self.live is not None:  # readers still have it
                self.live.complete("stdout", answer.stdout)
                self.live.complete("stderr", answer.stderr)
                self.live = None
            # Standard output first, since nobody knows the order.
            if answer.stdout:
                self._printed = tuple(self._pieces("stdout", answer.stdout))
            if answer.stderr:
                self._printed += tuple(self._pieces("stderr", answer.stderr))
            shown = tuple(_shown(answer.displays)) if answer.displays else ()
            self.end = ExecutionEnd(
                execution_id=self.start.execution_id,
                exit_code=answer.exit_code,
                duration_s=answer.duration_s,
                timed_out=answer.timed_out,
                interrupted=answer.interrupted,
                interpreter_restarted=answer.interpreter_restarted,
                restart_reason=answer.restart_reason,
                displays=shown,
                truncated=answer.truncated,
                error=None,
            )
            # Code chooses these texts, too, and may run a thousand times: all of them count.
            texts += (piece.text for piece in self._printed)
            texts += answer.restart_reason, *(each.file or "" for each in answer.truncated.values())
            if shown:
                self.size_bytes += sum(map(_shown_size, shown))
        self.size_bytes += sum(map(sys.getsizeof, filter(None, texts)))

    def drop_images(self) -> int:
        """Drop the images that its code displayed, and count them as left out."""
        assert self.end is not None, "only an execution that has ended has images"
        before = sum(map(_shown_size, self.end.displays))
        self.end = self.end._replace(displays=tuple(map(_without_images, self.end.displays)))
        freed = before - sum(map(_shown_size, self.end.displays))
        self.size_bytes -= freed
        return freed

    @property
    def has_images(self) -> bool:
        """True while it keeps images."""
        displays = () if self.end is None else self.end.displays
        return any(kind in _IMAGE_KINDS for shown in displays for kind in shown.data)

    def piece(self, stream: StreamName, text: str, skipped: int = 0) -> OutputPiece:
        """Make an entry for printed output."""
        return OutputPiece(self.start.execution_id, stream, text, skipped)

    def output(self) -> Iterator[OutputPiece]:
        """Yield its output once it has ended."""
        yield from self._printed
        for piece in self.live or ():
            yield self.piece(*piece)

    def _pieces(self, stream: StreamName, text: str) -> Iterator[OutputPiece]:
        """Yield a stream; head and tail of a long one."""
        skipped = len(text) - MAX_STREAM_CHARS
        if skipped > 0:
            yield self.piece(stream, text[: MAX_STREAM_CHARS // 2])
            yield self.piece(stream, text[-MAX_STREAM_CHARS // 2 :], skipped)
        else:
            yield self.piece(stream, text)


def _shown(displays: tuple[Mapping[str, Any], ...]) -> Iterator[DisplayedValue]:
    """Yield displayed values, without long ones and those that are neither text nor images."""
    room = {"text": MAX_SHOWN_CHARS, "image": MAX_IMAGE_CHARS}
    for display in displays[:_MAX_SHOWN]:
        data: dict[str, str] = {}
        omitted: dict[str, int] = {}
        bundle, place = split_place(display) if PLACE in display else (display, None)
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


def _shown_size(shown: DisplayedValue) -> int:
    kinds = (*shown.data, *shown.omitted)
    return sum(map(sys.getsizeof, (*shown.data.values(), *kinds)))
