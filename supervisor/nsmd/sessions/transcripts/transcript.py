"""Transcript of one session, and its readers.

Writing stores references and never waits. A reader is a position in the record and not a copy of
it. It takes the next entry when it has room for one, so a slow reader delays nobody and costs at
most the output of one execution. A reader skips what was dropped before it got there; the entries
show that (`number`, `skipped`).
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Protocol

import trio

from nsm.dataclass import dataclass
from nsm.wire.errors import NsmError
from nsm.wire.transcripts import Entry, SessionStart
from nsmd.model.values import Outcome, Output
from nsmd.sessions.transcripts.live import LiveOutput, ReaderPosition
from nsmd.sessions.transcripts.record import TranscriptRecord

MAX_TRANSCRIPT_BYTES = 4 * 1024 * 1024
"""Kept size of one session; its oldest executions go first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """The session of a transcript; `name` is None for a one-shot."""

    id: str
    name: str | None
    env: str
    interpreter: str
    client: str
    scope: str

    def means(self, target: str) -> bool:
        """Return whether a target is its id, its name or ``scope/name``."""
        return target == self.id or (
            self.name is not None and target in (self.name, f"{self.scope}/{self.name}")
        )


class TranscriptBudget(Protocol):
    """Interface to the common bound of all transcripts."""

    def grown(self, transcript: Transcript, record: TranscriptRecord) -> None:
        """A record has its final size."""

    def shrunk(self, record: TranscriptRecord) -> None:
        """A record was dropped."""


class Transcript:
    """Transcript of one session.

    Attributes:
        executions: number of executions, dropped ones included.
        started_s, ended_s: on trio's clock; `ended_s` is None while the session lives.
        end_reason: why the session ended, for people.
        followers: number of readers that wait for more.
        size_bytes: approximate size in memory, without the running execution.
    """

    __slots__ = (
        "_budget",
        "_changed",
        "_records",
        "_running",
        "_running_since_s",
        "_started_at",
        "end_reason",
        "ended_s",
        "executions",
        "followers",
        "size_bytes",
        "started_s",
        "subject",
    )

    def __init__(self, subject: Subject, budget: TranscriptBudget) -> None:
        self.subject = subject
        self.executions = 0
        self.started_s = trio.current_time()
        self.ended_s: float | None = None
        self.end_reason = ""
        self.followers = 0
        self._started_at = time.time()
        self._budget = budget
        self._records: dict[int, TranscriptRecord] = {}  # by number, in order, with gaps
        self.size_bytes = 0
        self._running: TranscriptRecord | None = None
        self._running_since_s = 0.0
        self._changed: trio.Event | None = None

    def __repr__(self) -> str:
        return f"<Transcript {self.subject.id} {len(self._records)} of {self.executions}>"

    @property
    def opened_ns(self) -> int:
        """Unix time when the transcript began, in ns."""
        return int(self._started_at * 1e9)

    # For the session.

    def opened_earlier(self, age_s: float) -> None:
        """Note that the session began that long ago, under an earlier supervisor."""
        self.started_s -= age_s
        self._started_at -= age_s

    def begin(
        self,
        execution_id: str,
        client: str,
        code: str,
        *,
        streamed: bool,
        sent_at: float | None = None,
    ) -> None:
        """Add an execution that is sent to the agent.

        Args:
            streamed: its output comes while it runs.
            sent_at: Unix time, if an earlier supervisor sent it.
        """
        self._running = self._add(execution_id, client, code)
        if sent_at is not None:
            # Code may have changed what its agent says.
            self._running.began(min(max(sent_at, self._started_at), time.time()))
        self._running_since_s = trio.current_time()
        if streamed:
            self._running.live = LiveOutput()
        self.wake_readers()

    def stream(self) -> None:
        """Note that the running execution's output comes from now on, beginning with what it has
        printed.
        """
        if self._running is not None and self._running.live is None:
            self._running.live = LiveOutput()

    def output(self, output: Output) -> None:
        """Add output of the running execution."""
        if self._running is not None and self._running.live is not None:
            self._running.live.put(output.stream, output.text)
            self.wake_readers()

    def finish(self, answer: Outcome | NsmError) -> None:
        """Add the answer of the running execution."""
        record, self._running = self._running, None
        if record is not None:
            record.finish(answer, trio.current_time() - self._running_since_s)
            self._finished(record)

    def never_ran(
        self, execution_id: str, client: str, code: str, answer: Outcome | NsmError
    ) -> None:
        """Add an execution that got its answer without being sent to the agent."""
        record = self._add(execution_id, client, code)
        record.finish(answer, 0.0)
        self._finished(record)

    def close(self, reason: str) -> None:
        """Note that the session is over."""
        self.ended_s = trio.current_time()
        self.end_reason = reason
        self.wake_readers()

    # For readers.

    def read(self, *, last: int | None = None, follow: bool = False) -> TranscriptReader:
        """Make a reader, at the beginning or before the last few executions."""
        return TranscriptReader(self, last=last, follow=follow)

    def header(self) -> SessionStart:
        """Return the first entry."""
        subject = self.subject
        return SessionStart(
            id=subject.id,
            name=subject.name,
            env=subject.env,
            interpreter=subject.interpreter,
            client=subject.client,
            scope=subject.scope,
            started_at=self._started_at,
            dropped=self.executions - len(self._records),
        )

    def record(self, number: int) -> TranscriptRecord | None:
        """Return the execution of that number, or the first later one that is kept; None if none
        is.
        """
        if (record := self._records.get(number)) is not None or number > self.executions:
            return record
        return next((r for r in self._records.values() if r.number > number), None)

    async def wait_changed(self) -> None:
        """Wait until something is added."""
        if self._changed is None:
            self._changed = trio.Event()
        await self._changed.wait()

    def wake_readers(self) -> None:
        """Wake every reader."""
        if self._changed is not None:
            self._changed.set()
            self._changed = None

    # For the bounds.

    def drop(self, record: TranscriptRecord) -> None:
        """Drop an ended execution."""
        del self._records[record.number]
        self.size_bytes -= record.size_bytes
        self._budget.shrunk(record)

    def clear(self) -> None:
        """Drop everything; the session has ended."""
        for record in list(self._records.values()):
            self.drop(record)

    def _add(self, execution_id: str, client: str, code: str) -> TranscriptRecord:
        self.executions += 1
        record = TranscriptRecord(self.executions, execution_id, client, code)
        self._records[record.number] = record
        return record

    def _finished(self, record: TranscriptRecord) -> None:
        self.size_bytes += record.size_bytes
        self._budget.grown(self, record)
        while self.size_bytes > MAX_TRANSCRIPT_BYTES:
            self.drop(next(r for r in self._records.values() if r.ended))
        self.wake_readers()


class TranscriptReader:
    """Reader of a transcript, from some position on.

    Iterating gives entries, and None when the caller should await `wait` before it goes on. It ends
    at the end of the transcript; without `follow`, at the end of what there is now.
    """

    def __init__(self, transcript: Transcript, *, last: int | None, follow: bool) -> None:
        self._transcript = transcript
        self._follow = follow
        self._number = 1 if last is None else max(1, transcript.executions - last + 1)

    def stop(self) -> None:
        """Stop at the end of what there is now."""
        self._follow = False
        self._transcript.wake_readers()

    async def wait(self) -> None:
        """Wait until there may be more."""
        if self._follow and self._transcript.ended_s is None:
            await self._transcript.wait_changed()

    def __iter__(self) -> Iterator[Entry | None]:
        transcript = self._transcript
        yield transcript.header()
        while True:
            record = transcript.record(self._number)
            if record is not None:
                self._number = record.number + 1
                yield record.start()
                yield from self._output(record)
                if record.ended:
                    yield record.end()
            elif self._follow and transcript.ended_s is None:
                yield None
            else:
                return

    def _output(self, record: TranscriptRecord) -> Iterator[Entry | None]:
        """Yield its output until it has ended, or until a reader that does not follow has all of
        it.
        """
        if record.ended:
            yield from record.output()
            return
        position = ReaderPosition()
        live = None
        while True:
            live = live or record.live
            ended = record.ended  # read before the output: what comes at its end is read as well
            if live is not None:
                while (piece := live.read(position)) is not None:
                    yield record.piece(*piece)
            if ended:
                break
            if not record.ended:
                if not self._follow:
                    return
                yield None
        if live is None:
            yield from record.output()
        else:
            for piece in live.missing(position):
                yield record.piece(*piece)
