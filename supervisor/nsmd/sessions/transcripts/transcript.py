"""Transcript of one session, and its readers; the transcripts of all sessions.

Writing stores references and never waits. A reader is a position in the record and not a copy of
it. It takes the next entry when it has room for one, so a slow reader delays nobody and costs at
most the output of one execution. A reader skips what was dropped before it got there; the entries
show that (`number`, `skipped`). There is room for as many ended sessions as `MAX_TOTAL_BYTES`
allows.
"""

from __future__ import annotations

import shlex
import time
from collections import OrderedDict
from collections.abc import Iterator

import trio

from nsm.dataclass import dataclass
from nsm.wire.errors import NsmError
from nsm.wire.transcripts import Entry, FreshRun, JobEnd, JobStart, SessionStart
from nsmd.agent_link.frames import JobFacts
from nsmd.model.values import Environment, Labels, Outcome, Output, RunRequest, Tenancy
from nsmd.sessions.transcripts.record import (
    MAX_CODE_CHARS,
    JobEntry,
    LiveOutput,
    ReaderPosition,
    TranscriptRecord,
)

MAX_TRANSCRIPT_BYTES = 4 * 1024 * 1024
"""Kept size of one session; its oldest images go first, then its oldest executions and notes."""

MAX_COMMAND_CHARS = 1000
"""Kept beginning of a job's arguments at its end. They are kept longer at its start."""

Item = TranscriptRecord | JobEntry


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """The session of a transcript; `name` is None for a one-shot."""

    id: str
    name: str | None
    env: str
    interpreter: str
    client: str
    scope: str
    labels: Labels = ()

    def means(self, target: str) -> bool:
        """Return whether a target is its id, its name or ``scope/name``."""
        return target == self.id or (
            self.name is not None and target in (self.name, f"{self.scope}/{self.name}")
        )


class Transcript:
    """Transcript of one session.

    Attributes:
        executions: number of executions, dropped ones included.
        programs: number of programs that ran in fresh interpreters.
        started_s, ended_s: on trio's clock; `ended_s` is None while the session lives.
        followers: number of readers that wait for more.
        size_bytes: approximate size in memory, without the running execution.
    """

    __slots__ = (
        "_after_restart",
        "_changed",
        "_illustrated",
        "_items",
        "_kept",
        "_places",
        "_running",
        "_running_since_s",
        "_started_at",
        "_store",
        "end_reason",
        "ended_s",
        "executions",
        "followers",
        "programs",
        "size_bytes",
        "started_s",
        "subject",
    )

    def __init__(self, subject: Subject, store: TranscriptStore) -> None:
        self.subject = subject
        self.executions = self.programs = 0
        self.started_s = trio.current_time()
        self.ended_s: float | None = None
        self.end_reason = ""
        self.followers = 0
        self._started_at = time.time()
        self._after_restart = False
        self._store = store
        self._items: dict[int, Item] = {}  # by place, in order, with gaps
        self._places = 0
        self._illustrated: list[int] = []  # places of executions with images; few
        self._kept = 0  # executions
        self.size_bytes = 0
        self._running: TranscriptRecord | None = None
        self._running_since_s = 0.0
        self._changed: trio.Event | None = None

    def __repr__(self) -> str:
        return f"<Transcript {self.subject.id} {self._kept} of {self.executions}>"

    @property
    def opened_ns(self) -> int:
        """Unix time when the transcript began, in ns."""
        return int(self._started_at * 1e9)

    # For the session.

    def opened_earlier(self, age_s: float) -> None:
        """Note that the session began that long ago, under an earlier supervisor."""
        self.started_s -= age_s
        self._started_at -= age_s
        self._after_restart = True

    def begin(
        self,
        execution_id: str,
        request: RunRequest,
        *,
        streamed: bool,
        sent_at: float | None = None,
    ) -> None:
        """Add an execution that is sent to the agent.

        Args:
            sent_at: Unix time, if an earlier supervisor sent it; else None.
        """
        # Code may have changed what its agent says.
        earlier = None if sent_at is None else min(max(sent_at, self._started_at), time.time())
        self._running = self._add(execution_id, request, earlier)
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

    def never_ran(self, execution_id: str, request: RunRequest, answer: Outcome | NsmError) -> None:
        """Add an execution that got its answer without being sent to the agent."""
        record = self._add(execution_id, request)
        record.finish(answer, 0.0)
        self._finished(record)

    def job_started(self, client: str, job: JobFacts, command: str) -> None:
        """Note a job that was started; `command` as in `JobStart`."""
        kept = command[:MAX_CODE_CHARS]
        self._note(JobStart(job.job, client, kept, len(command) - len(kept), time.time()))

    def job_ended(self, job: JobFacts) -> None:
        """Note a job that has ended."""
        command = shlex.join(job.argv)[:MAX_COMMAND_CHARS]
        self._note(
            JobEnd(
                job=job.job,
                command=command,
                outcome=job.outcome,
                exit_code=job.exit_code or 0,
                signal=job.signal,
                duration_s=job.duration_s,
                output_bytes=job.output_bytes,
            )
        )

    def programs_ended(self, entry: FreshRun) -> None:
        """Note programs that ran in fresh interpreters."""
        self._note(entry)

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
            dropped=self.executions - self._kept,
            after_restart=self._after_restart,
            labels=dict(subject.labels),
        )

    def item(self, place: int) -> Item | None:
        """Return what is at a place, or the first later item that is kept; None if none is."""
        if (item := self._items.get(place)) is not None or place > self._places:
            return item
        return next((item for item in self._items.values() if item.place > place), None)

    def place_of_last(self, executions: int) -> int:
        """Return the place at which the last few executions begin."""
        place = self._places + 1
        for item in reversed(self._items.values()):
            if not executions:
                return place
            if isinstance(item, TranscriptRecord):
                executions -= 1
                place = item.place
        return place if not executions else 1

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

    def drop(self, item: Item) -> None:
        """Drop a note, or an execution that has ended."""
        del self._items[item.place]
        if self._illustrated and self._illustrated[0] == item.place:
            self._illustrated.pop(0)
        if isinstance(item, TranscriptRecord):
            self._kept -= 1
        self.size_bytes -= item.size_bytes
        self._store.shrunk(item)

    def clear(self) -> None:
        """Drop everything; the session has ended."""
        for item in list(self._items.values()):
            self.drop(item)

    def _add(
        self, execution_id: str, request: RunRequest, started_at: float | None = None
    ) -> TranscriptRecord:
        self.executions += 1
        self._kept += 1
        self._places += 1
        started_at = time.time() if started_at is None else started_at
        record = TranscriptRecord(self._places, self.executions, execution_id, request, started_at)
        self._items[record.place] = record
        return record

    def _drop_images(self, item: Item | None) -> None:
        """Drop the images of an execution; None if it was dropped as a whole."""
        if isinstance(item, TranscriptRecord):
            freed = item.drop_images()
            self.size_bytes -= freed
            self._store.freed(freed)

    def _note(self, entry: JobStart | JobEnd | FreshRun) -> None:
        self._places += 1
        note = self._items[self._places] = JobEntry(self._places, entry)
        self._finished(note)

    def _finished(self, item: Item) -> None:
        self.size_bytes += item.size_bytes
        if isinstance(item, TranscriptRecord) and item.has_images:
            self._illustrated.append(item.place)
        self._store.grown(self, item)
        while self.size_bytes > MAX_TRANSCRIPT_BYTES:
            if self._illustrated:
                self._drop_images(self._items.get(self._illustrated.pop(0)))
            else:
                self.drop(next(item for item in self._items.values() if item.ended))
        self.wake_readers()


class TranscriptReader:
    """Reader of a transcript, from some position on.

    Iterating gives entries, and None when the caller should await `wait` before it goes on. It ends
    at the end of the transcript; without `follow`, at the end of what there is now.
    """

    def __init__(self, transcript: Transcript, *, last: int | None, follow: bool) -> None:
        self._transcript = transcript
        self._follow = follow
        self._place = 1 if last is None else transcript.place_of_last(last)

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
            if (note := self._next_note()) is not None:
                yield note.entry
            elif isinstance(record := transcript.item(self._place), TranscriptRecord):
                self._place = record.place + 1
                yield record.start
                yield from self._output(record)
                if record.end is not None:
                    yield record.end
            elif self._follow and transcript.ended_s is None:
                yield None
            else:
                return

    def _next_note(self) -> JobEntry | None:
        """Return what comes next if it is a note, and step over it."""
        item = self._transcript.item(self._place)
        if not isinstance(item, JobEntry):
            return None
        self._place = item.place + 1
        return item

    def _output(self, record: TranscriptRecord) -> Iterator[Entry | None]:
        """Yield its output until it has ended, or until a reader that does not follow has all of
        it. A reader that has all output so far gets the notes that were made meanwhile.
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
                if (note := self._next_note()) is not None:
                    yield note.entry
                elif not self._follow:
                    return
                else:
                    yield None
        if live is None:
            yield from record.output()
        else:
            for piece in live.missing(position):
                yield record.piece(*piece)


MAX_ENDED_KEPT = 1000
"""Largest number of ended sessions whose transcripts are kept; the oldest go first."""

MAX_TOTAL_BYTES = 64 * 1024 * 1024
"""Total size of all kept transcripts; the oldest executions go first."""


class TranscriptStore:
    """Transcripts of all sessions."""

    def __init__(self) -> None:
        self._ended: OrderedDict[str, Transcript] = OrderedDict()  # by session id
        # In the order of their ends.
        self._items: OrderedDict[Item, Transcript] = OrderedDict()
        self.size_bytes = 0

    def open(
        self, session_id: str, environment: Environment, tenancy: Tenancy | None
    ) -> Transcript:
        """Open the transcript of a session that begins; `tenancy` is None for a spare."""
        return Transcript(
            Subject(
                id=session_id,
                name=tenancy.name if tenancy else None,
                env=environment.name,
                interpreter=environment.interpreter,
                client=tenancy.client if tenancy else "",
                scope=tenancy.scope if tenancy else "",
                labels=tenancy.labels if tenancy else (),
            ),
            self,
        )

    def close(self, transcript: Transcript, reason: str) -> None:
        """Note that its session has ended."""
        transcript.close(reason)
        self._ended[transcript.subject.id] = transcript
        if len(self._ended) > MAX_ENDED_KEPT:
            _, oldest = self._ended.popitem(last=False)
            oldest.clear()

    def ended(self) -> Iterator[Transcript]:
        """Yield the transcripts of ended sessions, the newest last."""
        return iter(self._ended.values())

    def find(self, target: str) -> Transcript | None:
        """Find the ended session of that id, or the last one of that name or ``scope/name``."""
        if target in self._ended:
            return self._ended[target]
        return next((t for t in reversed(self._ended.values()) if t.subject.means(target)), None)

    # For transcripts.

    def grown(self, transcript: Transcript, item: Item) -> None:
        """An item has its final size."""
        self._items[item] = transcript
        self.size_bytes += item.size_bytes
        while self.size_bytes > MAX_TOTAL_BYTES:
            oldest, owner = next(iter(self._items.items()))
            owner.drop(oldest)

    def freed(self, size_bytes: int) -> None:
        """Part of an item was dropped."""
        self.size_bytes -= size_bytes

    def shrunk(self, item: Item) -> None:
        """An item was dropped."""
        del self._items[item]
        self.size_bytes -= item.size_bytes
