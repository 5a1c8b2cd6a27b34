"""Transcript of one session, and its readers.

Writing stores references and never waits. A reader is a place in the record and not a copy of it:
it takes the next entry when whoever reads has room for one, so a slow reader holds nobody up and
costs at most the output of one execution. What the record has given up before a reader came there
is passed over, which the entries tell (`number`, `skipped`).
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

import trio

from nsm.wire.errors import NsmError
from nsm.wire.transcripts import Entry, SessionStart
from nsmd.model.values import Outcome, Output
from nsmd.sessions.transcripts.live import LiveOutput, Place
from nsmd.sessions.transcripts.record import Record

MAX_TRANSCRIPT_BYTES = 4 * 1024 * 1024
"""Kept of one session; its oldest executions go first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """The session that a transcript is of; `name` is None for a one-shot."""

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
    """Interface to the bound of all transcripts together."""

    def grown(self, transcript: Transcript, record: Record) -> None:
        """A record has its final size."""

    def shrunk(self, record: Record) -> None:
        """A record was given up."""


class Transcript:
    """Transcript of one session.

    Attributes:
        executions: how many there were, those that are no longer kept included.
        started_s, ended_s: on trio's clock; `ended_s` is None while the session lives.
        end_reason: why it has ended, for people.
        followers: how many readers wait for more.
        size_bytes: about how much memory what is kept takes; what runs is not counted.
    """

    __slots__ = (
        "_changed",
        "_keeper",
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

    def __init__(self, subject: Subject, keeper: TranscriptBudget) -> None:
        self.subject = subject
        self.executions = 0
        self.started_s = trio.current_time()
        self.ended_s: float | None = None
        self.end_reason = ""
        self.followers = 0
        self._started_at = time.time()
        self._keeper = keeper
        self._records: dict[int, Record] = {}  # by number in order, some missing
        self.size_bytes = 0
        self._running: Record | None = None
        self._running_since_s = 0.0
        self._changed: trio.Event | None = None

    def __repr__(self) -> str:
        return f"<Transcript {self.subject.id} {len(self._records)} of {self.executions}>"

    @property
    def opened_ns(self) -> int:
        """When it was begun, Unix time."""
        return int(self._started_at * 1e9)

    # The session's side.

    def opened_earlier(self, age_s: float) -> None:
        """The session was opened that long ago, under an earlier supervisor."""
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
        """An execution is sent to the agent.

        Args:
            streamed: its output comes while it runs.
            sent_at: Unix time, where an earlier supervisor sent it.
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
        """From now on the running execution's output comes, beginning with what it has printed."""
        if self._running is not None and self._running.live is None:
            self._running.live = LiveOutput()

    def output(self, output: Output) -> None:
        """The running execution has printed something."""
        if self._running is not None and self._running.live is not None:
            self._running.live.put(output.stream, output.text)
            self.wake_readers()

    def finish(self, answer: Outcome | NsmError) -> None:
        """The running execution has its answer."""
        record, self._running = self._running, None
        if record is not None:
            record.finish(answer, trio.current_time() - self._running_since_s)
            self._finished(record)

    def never_ran(
        self, execution_id: str, client: str, code: str, answer: Outcome | NsmError
    ) -> None:
        """An execution got its answer without being sent to the agent."""
        record = self._add(execution_id, client, code)
        record.finish(answer, 0.0)
        self._finished(record)

    def close(self, reason: str) -> None:
        """The session is over."""
        self.ended_s = trio.current_time()
        self.end_reason = reason
        self.wake_readers()

    # The readers' side.

    def read(self, *, last: int | None = None, follow: bool = False) -> Reader:
        """A reader at the beginning, or before the last few executions."""
        return Reader(self, last=last, follow=follow)

    def header(self) -> SessionStart:
        """The first entry."""
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

    def record(self, number: int) -> Record | None:
        """The execution of that number, or the first later one that is kept; None if none is."""
        if (record := self._records.get(number)) is not None or number > self.executions:
            return record
        return next((r for r in self._records.values() if r.number > number), None)

    async def wait_changed(self) -> None:
        """Wait until something is added."""
        if self._changed is None:
            self._changed = trio.Event()
        await self._changed.wait()

    def wake_readers(self) -> None:
        """Let every reader look again."""
        if self._changed is not None:
            self._changed.set()
            self._changed = None

    # Within bounds.

    def drop(self, record: Record) -> None:
        """Give an execution up that has ended."""
        del self._records[record.number]
        self.size_bytes -= record.size_bytes
        self._keeper.shrunk(record)

    def clear(self) -> None:
        """Give everything up; the session has ended."""
        for record in list(self._records.values()):
            self.drop(record)

    def _add(self, execution_id: str, client: str, code: str) -> Record:
        self.executions += 1
        record = Record(self.executions, execution_id, client, code)
        self._records[record.number] = record
        return record

    def _finished(self, record: Record) -> None:
        self.size_bytes += record.size_bytes
        self._keeper.grown(self, record)
        while self.size_bytes > MAX_TRANSCRIPT_BYTES:
            self.drop(next(r for r in self._records.values() if r.ended))
        self.wake_readers()


class Reader:
    """Reads a transcript from some place on.

    Iterating gives entries, and None where `wait` is to be awaited before going on. It ends at the
    transcript's end; without `follow`, at the end of what there is now.
    """

    def __init__(self, transcript: Transcript, *, last: int | None, follow: bool) -> None:
        self._transcript = transcript
        self._follow = follow
        self._number = 1 if last is None else max(1, transcript.executions - last + 1)

    def stop(self) -> None:
        """End with what there is now."""
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

    def _output(self, record: Record) -> Iterator[Entry | None]:
        """Yield its output until it has ended, or until there is no waiting for more."""
        if record.ended:
            yield from record.output()
            return
        place = Place()
        live = None
        while True:
            live = live or record.live
            ended = record.ended  # before reading: what comes at its end is read as well
            if live is not None:
                while (piece := live.read(place)) is not None:
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
            for piece in live.missing(place):
                yield record.piece(*piece)
