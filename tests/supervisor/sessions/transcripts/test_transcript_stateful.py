"""Transcripts under any order of events: readers of any speed see each execution and each job once,
in order, with all of its output or the count of what is missing; and the sizes add up."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import trio
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from fakes import PYTHON, job_facts
from nsm.wire.errors import SessionEndedError
from nsm.wire.transcripts import ExecutionEnd, ExecutionStart, JobEnd, JobStart, OutputPiece
from nsmd.model.values import ClientIdentity, Outcome, Output, RunRequest, StreamName, Tenancy
from nsmd.sessions.transcripts import TranscriptStore, record, transcript

if TYPE_CHECKING:
    from collections.abc import Iterator

    from nsm.wire.transcripts import Entry

REQUEST = RunRequest(client=ClientIdentity(name="c", scope="s"), env="python", code="code")
TENANCY = Tenancy(name="a", scope="s", client="c", idle_timeout_s=1, max_lifetime_s=1)
Sessions = st.integers(0, 1)
Sizes = st.sampled_from([1, 10, 1000, 3000])
Pieces = st.lists(st.tuples(st.sampled_from(["stdout", "stderr"]), Sizes), max_size=4)


class Follower:
    """Reads at its own speed, and checks what it sees."""

    def __init__(
        self, entries: Iterator[Entry | None], printed: dict[str, int], speed: int
    ) -> None:
        next(entries)  # the header
        self._entries = entries
        self.speed = speed
        self._printed = printed
        self._open: ExecutionStart | None = None
        self._number = 0
        self._job = 0
        self._seen = 0

    def read(self, most: int) -> None:
        for _ in range(most):
            entry = next(self._entries, None)
            if entry is None:
                return
            match entry:
                case ExecutionStart():
                    assert self._open is None
                    assert entry.number > self._number
                    self._open, self._number, self._seen = entry, entry.number, 0
                case OutputPiece():
                    assert self._open is not None
                    assert entry.execution_id == self._open.execution_id
                    self._seen += len(entry.text) + entry.skipped
                case ExecutionEnd():
                    assert self._open is not None
                    assert entry.execution_id == self._open.execution_id
                    assert self._seen == self._printed[entry.execution_id]
                    self._open = None
                case JobStart() | JobEnd():
                    assert int(entry.job) > self._job
                    self._job = int(entry.job)
                case _:
                    raise AssertionError(entry)


class Transcripts(RuleBasedStateMachine):
    """Two sessions of a store that is small, so that everything is given up at some point."""

    def __init__(self) -> None:
        super().__init__()
        self.store = TranscriptStore()
        self.printed: dict[str, int] = {}
        self.followers: list[Follower] = []
        self.open = [self._new("s0"), self._new("s1")]
        self.sessions = 2
        self.count = 0
        self.prints = 0
        self.running: dict[int, dict[StreamName, str]] = {}
        self.streamed: dict[int, bool] = {}
        self.ids: dict[int, str] = {}

    def _new(self, session_id: str) -> transcript.Transcript:
        it = self.store.open(session_id, PYTHON, TENANCY)
        for speed in (1, 3, 100):
            self._follow(it, None, speed)
        return it

    def _follow(self, it: transcript.Transcript, last: int | None, speed: int) -> None:
        entries = iter(it.read(last=last, follow=True))
        self.followers.append(Follower(entries, self.printed, speed))

    def teardown(self) -> None:
        for which in list(self.running):
            self.finish(which, fails=False)
        for follower in self.followers:
            follower.read(10_000)

    @rule(which=Sessions, streamed=st.booleans(), pieces=Pieces)
    def run(self, which: int, streamed: bool, pieces: list[tuple[StreamName, int]]) -> None:
        """Begin, or print more where something runs."""
        if which not in self.running:
            self.count += 1
            self.ids[which] = f"e{self.count}"
            self.open[which].begin(self.ids[which], REQUEST, streamed=streamed)
            self.running[which] = {"stdout": "", "stderr": ""}
            self.streamed[which] = streamed
        for stream, size in pieces:
            # No two ends are alike: where one stops is found again in the final text.
            self.prints += 1
            text = "x" * size + f"{self.prints:09}"
            self.running[which][stream] += text
            if self.streamed[which]:
                self.open[which].output(Output(stream=stream, text=text))

    @rule(which=Sessions, size=Sizes)
    def lose_the_end(self, which: int, size: int) -> None:
        """The agent leaves its last piece out where the supervisor lags behind."""
        if which in self.running:
            self.prints += 1
            self.running[which]["stdout"] += "x" * size + f"{self.prints:09}"
            self.finish(which, fails=False)

    @rule(which=Sessions)
    def follow_late(self, which: int) -> None:
        if which in self.running and not self.streamed[which]:
            self.streamed[which] = True
            self.open[which].stream()
            for stream, text in self.running[which].items():
                self.open[which].output(Output(stream=stream, text=text))

    @rule(which=Sessions, fails=st.booleans())
    def finish(self, which: int, fails: bool) -> None:
        if which not in self.running:
            return
        texts = self.running.pop(which)
        told = not fails or self.streamed[which]
        self.printed[self.ids[which]] = sum(map(len, texts.values())) if told else 0
        displays = ({"image/png": "A" * self.count * 100},) if self.count % 3 == 0 else ()
        outcome = Outcome(
            stdout=texts["stdout"], stderr=texts["stderr"], exit_code=0, displays=displays
        )
        self.open[which].finish(SessionEndedError("x") if fails else outcome)

    @rule(which=Sessions)
    def never_run(self, which: int) -> None:
        self.count += 1
        self.printed[f"e{self.count}"] = 0
        self.open[which].never_ran(f"e{self.count}", REQUEST, SessionEndedError("x"))

    @rule(which=Sessions, starts=st.booleans())
    def note_job(self, which: int, starts: bool) -> None:
        self.count += 1
        told = job_facts(str(self.count))
        if starts:
            self.open[which].job_started("c", told, "make")
        else:
            self.open[which].job_ended(told)

    @rule(which=Sessions)
    def end(self, which: int) -> None:
        self.finish(which, fails=True)
        self.store.close(self.open[which], "over")
        self.open[which] = self._new(f"s{self.sessions}")
        self.sessions += 1

    @rule(which=Sessions, last=st.none() | st.integers(0, 3), speed=st.integers(0, 9))
    def follow(self, which: int, last: int | None, speed: int) -> None:
        self._follow(self.open[which], last, speed)

    @invariant()
    def everybody_reads(self) -> None:
        for follower in self.followers:
            follower.read(follower.speed)

    @invariant()
    def sizes_add_up(self) -> None:
        transcripts = [*self.open, *self.store.ended()]
        kept = sum(t.size_bytes for t in transcripts)
        assert kept == self.store.size_bytes <= transcript.MAX_TOTAL_BYTES
        assert all(t.size_bytes <= transcript.MAX_TRANSCRIPT_BYTES for t in transcripts)


def test_transcripts_under_any_order_of_events(monkeypatch: pytest.MonkeyPatch) -> None:
    # A hundredth of everything: what is compared here is not how large the bounds are.
    monkeypatch.setattr(record, "HEAD_CHARS", 1300)
    monkeypatch.setattr(record, "TAIL_CHARS", 4000)
    monkeypatch.setattr(record, "MAX_STREAM_CHARS", 2600)
    monkeypatch.setattr(transcript, "MAX_TRANSCRIPT_BYTES", 8_000)
    monkeypatch.setattr(transcript, "MAX_TOTAL_BYTES", 12_000)
    case = Transcripts.TestCase
    case.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)

    async def main() -> None:
        case().runTest()

    trio.run(main)
