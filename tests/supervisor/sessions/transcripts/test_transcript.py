"""Transcripts: what is kept, within which bounds, and what readers of any speed see of it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import trio
import trio.testing
from hypothesis import given
from hypothesis import strategies as st

from fakes import PYTHON, job_facts
from nsm.dataclass import replace
from nsm.wire.code import PLACE, Truncation
from nsm.wire.errors import InternalError, NsmError, SessionEndedError
from nsm.wire.transcripts import (
    DisplayedValue,
    Entry,
    ExecutionEnd,
    ExecutionStart,
    JobEnd,
    JobStart,
    OutputPiece,
    SessionStart,
)
from nsmd.model.values import ClientIdentity, Outcome, Output, RunRequest, StreamName, Tenancy
from nsmd.sessions.transcripts import TranscriptStore, transcript
from nsmd.sessions.transcripts.record import (
    HEAD_CHARS,
    MAX_ARGUMENTS_CHARS,
    MAX_CODE_CHARS,
    MAX_IMAGE_CHARS,
    MAX_SHOWN_CHARS,
    MAX_STREAM_CHARS,
    TAIL_CHARS,
    LiveOutput,
    ReaderPosition,
)

if TYPE_CHECKING:
    from nsmd.sessions.transcripts import Transcript, TranscriptReader

WORDS = "w" * 10_000
"""An agent's words that are no output; it may use somewhat more of them."""

TENANCY = Tenancy(name="a", scope="s", client="test", idle_timeout_s=100, max_lifetime_s=1000)


def request(
    code: str, client: str = "nsm", *, stdin: bool = False, reset: bool = False
) -> RunRequest:
    """A request to run code."""
    by = ClientIdentity(name=client, scope="s")
    return RunRequest(client=by, env="python", code=code, stdin=stdin, reset=reset)


class Bench:
    """A store and a transcript in it, written as a session writes it."""

    def __init__(self) -> None:
        self.store = TranscriptStore()
        self.transcript = self.open("s1", TENANCY)
        self._count = 0

    def open(self, session_id: str, tenancy: Tenancy) -> Transcript:
        return self.store.open(session_id, PYTHON, tenancy)

    def begin(self, code: str = "x", *, streamed: bool = False) -> str:
        self._count += 1
        self.transcript.begin(f"e{self._count}", request(code), streamed=streamed)
        return f"e{self._count}"

    def run(self, code: str = "x", stdout: str = "", stderr: str = "") -> None:
        self.begin(code)
        self.transcript.finish(Outcome(stdout=stdout, stderr=stderr, exit_code=0))

    def start_job(self, job: str, command: str = "make test") -> None:
        self.transcript.job_started("nsm", job_facts(job, running=True), command)

    def end_job(self, job: str, **changes: Any) -> None:
        self.transcript.job_ended(job_facts(job, **changes))

    def say(self, text: str, stream: StreamName = "stdout") -> None:
        self.transcript.output(Output(stream=stream, text=text))


@pytest.fixture
async def it() -> Bench:
    return Bench()


def entries(reader: TranscriptReader) -> list[Entry]:
    """All there is to read without waiting."""
    found: list[Entry] = []
    for entry in reader:
        if entry is None:
            break
        found.append(entry)
    return found


def printed(found: list[Entry]) -> str:
    return "".join(entry.text for entry in found if isinstance(entry, OutputPiece))


def end_of(found: list[Entry]) -> ExecutionEnd:
    (end,) = [entry for entry in found if isinstance(entry, ExecutionEnd)]
    return end


# Following


async def test_a_follower_waits_without_polling_and_may_stop(it: Bench) -> None:
    reader = it.transcript.read(follow=True)
    found: list[Entry] = []

    async def read() -> None:
        for entry in reader:
            if entry is None:
                await reader.wait()
            else:
                found.append(entry)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(read)
        await trio.testing.wait_all_tasks_blocked()
        it.run()
        await trio.testing.wait_all_tasks_blocked()
        assert len(found) == 3
        reader.stop()


@pytest.mark.parametrize(
    ("streamed", "final", "seen"),
    [
        ([], "all of it", "all of it"),
        (["all ", "of it"], "all of it", "all of it"),
        (["all "], "all of it", "all of it"),
        (["all ", "\n[... 900 bytes left out ...]\nof it"], "all of it", None),
        (["x" * 100], "x" * 100, "x" * 100),
        (
            ["head", "middle"],
            "head\n[... 99 bytes left out ...]\ntail",
            "headmiddle\n[... some output left out ...]\ntail",
        ),
    ],
)
async def test_the_last_of_the_output_is_never_missing(
    streamed: list[str], final: str, seen: str | None, it: Bench
) -> None:
    """The agent leaves its last piece out when the supervisor lags behind."""
    it.begin(streamed=True)
    reading = iter(it.transcript.read(follow=True))
    assert [type(next(reading)) for _ in range(3)] == [SessionStart, ExecutionStart, type(None)]
    for text in streamed:
        it.say(text)
    it.transcript.finish(Outcome(stdout=final, stderr="", exit_code=0))
    it.transcript.close("over")
    found = [entry for entry in reading if entry is not None]
    assert all(entry.text for entry in found if isinstance(entry, OutputPiece))
    assert printed(found) == (seen if seen is not None else "".join(streamed))
    assert isinstance(found[-1], ExecutionEnd)


# Bounds


async def test_long_code_and_long_output_are_cut(it: Bench) -> None:
    it.run("c" * (MAX_CODE_CHARS + 5), stdout="a" * MAX_STREAM_CHARS + "b" * 1000, stderr="short")
    _, start, head, tail, error, _ = entries(it.transcript.read())
    assert isinstance(start, ExecutionStart)
    assert (len(start.code), start.code_omitted) == (MAX_CODE_CHARS, 5)
    assert isinstance(head, OutputPiece)
    assert isinstance(tail, OutputPiece)
    assert (head.skipped, tail.skipped) == (0, 1000)
    assert len(head.text) + len(tail.text) == MAX_STREAM_CHARS
    assert tail.text.endswith("b" * 1000)
    assert error == OutputPiece("e1", "stderr", "short", 0)


async def test_displays_keep_their_text_and_images(it: Bench) -> None:
    it.begin()
    it.transcript.finish(
        Outcome(
            stdout="",
            stderr="",
            exit_code=0,
            displays=(
                {"text/plain": "<Figure>", "image/png": "A" * 5000},
                {"text/plain": "[1]", "application/json": [1]},
                {"text/html": "x" * (MAX_SHOWN_CHARS + 1), "k" * 1000: "?"},
                {"text/plain": "<Figure>", "image/png": "A" * 5000, PLACE: 1},
                {"image/png": "A" * MAX_IMAGE_CHARS, "image/x-icon": "AAAA"},
            ),
        )
    )
    assert end_of(entries(it.transcript.read())).displays == (
        DisplayedValue({"text/plain": "<Figure>", "image/png": "A" * 5000}, {}),
        DisplayedValue({"text/plain": "[1]"}, {"application/json": 3}),
        DisplayedValue({}, {"text/html": MAX_SHOWN_CHARS + 1}),
        DisplayedValue({"image/png": "A" * 5000}, {}),
        DisplayedValue({}, {"image/png": MAX_IMAGE_CHARS, "image/x-icon": 4}),
    )


async def test_images_go_before_executions(it: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transcript, "MAX_TRANSCRIPT_BYTES", 20_000)
    picture = {"text/plain": "<Figure>", "image/png": "A" * 5000}
    for _ in range(8):
        it.begin()
        it.transcript.finish(Outcome(stdout="", stderr="", exit_code=0, displays=(picture,)))
    found = entries(it.transcript.read())
    ends = [entry for entry in found if isinstance(entry, ExecutionEnd)]
    assert len(ends) == 8
    kept = ["image/png" in end.displays[0].data for end in ends]
    assert kept == sorted(kept)  # of the newest ones
    assert 1 <= sum(kept) < 4
    assert ends[0].displays == (DisplayedValue({"text/plain": "<Figure>"}, {"image/png": 5000}),)
    assert it.store.size_bytes == it.transcript.size_bytes <= 20_000


async def test_arguments_of_scripts_are_kept_within_a_bound(it: Bench) -> None:
    long = "a" * MAX_ARGUMENTS_CHARS
    for argv in (("/p/s.py", "a", "b c"), ("/p/s.py", long, "b")):
        it.transcript.begin("e", replace(request(""), argv=argv), streamed=False)
        it.transcript.finish(Outcome(stdout="", stderr="", exit_code=0))
    starts = [e for e in entries(it.transcript.read()) if isinstance(e, ExecutionStart)]
    assert [(e.argv, e.argv_omitted) for e in starts] == [
        (("/p/s.py", "a", "b c"), 0),
        (("/p/s.py",), 2),
    ]


async def test_a_transcript_that_begins_late_says_so(it: Bench) -> None:
    it.transcript.opened_earlier(60.0)
    (header,) = entries(it.transcript.read())
    assert isinstance(header, SessionStart)
    assert header.after_restart


async def test_the_oldest_executions_go_first(it: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transcript, "MAX_TRANSCRIPT_BYTES", 10_000)
    for number in range(20):
        it.run(str(number), stdout="x" * 1000)
    found = entries(it.transcript.read())
    header, starts = found[0], [e for e in found if isinstance(e, ExecutionStart)]
    assert isinstance(header, SessionStart)
    assert 2 < len(starts) < 8
    assert header.dropped == 20 - len(starts)
    assert [e.number for e in starts] == list(range(header.dropped + 1, 21))


async def test_running_code_stays_in_the_transcript(
    it: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transcript, "MAX_TRANSCRIPT_BYTES", 5000)
    it.begin("long")
    for number in range(20):
        it.transcript.never_ran(f"q{number}", request("c" * 1000), SessionEndedError("no"))
    starts = [e for e in entries(it.transcript.read(follow=True)) if isinstance(e, ExecutionStart)]
    assert [e.number for e in starts] == [1]
    it.transcript.finish(Outcome(stdout="", stderr="", exit_code=0))
    starts = [e for e in entries(it.transcript.read()) if isinstance(e, ExecutionStart)]
    assert starts[0].number >= 19  # the oldest are gone, whatever the order of their ends


@pytest.mark.parametrize(
    "answer",
    [
        Outcome(stdout="", stderr="", exit_code=1, restart_reason=WORDS),
        Outcome(
            stdout="",
            stderr="",
            exit_code=0,
            truncated={"stdout": Truncation(omitted_bytes=1, file=WORDS)},
        ),
        Outcome(
            stdout="", stderr="", exit_code=0, displays=tuple({f"a/{n:090}": 1} for n in range(100))
        ),
        InternalError(WORDS),
    ],
    ids=["reason", "file", "kinds", "error"],
)
async def test_every_text_of_a_jail_counts(it: Bench, answer: Outcome | NsmError) -> None:
    it.begin()
    it.transcript.finish(answer)
    assert it.transcript.size_bytes > 10_000


async def test_ended_sessions_are_found_by_id_and_by_name(it: Bench) -> None:
    older = it.transcript
    it.run("old")
    it.store.close(older, "idle timeout")
    newer = it.open("s2", TENANCY)
    it.store.close(newer, "killed")
    one_shot = it.open(
        "s3", Tenancy(name=None, scope="s", client="c", idle_timeout_s=1, max_lifetime_s=1)
    )
    it.store.close(one_shot, "one-shot finished")
    assert it.store.find("s1") is older
    assert it.store.find("a") is newer
    assert it.store.find("s/a") is newer
    assert it.store.find("s3") is one_shot
    for target in ("", "b", "t/a", "s/s1", "None"):
        assert it.store.find(target) is None
    assert [t.subject.id for t in it.store.ended()] == ["s1", "s2", "s3"]


async def test_ended_sessions_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transcript, "MAX_ENDED_KEPT", 3)
    it = Bench()
    for number in range(5):
        it.transcript = it.open(f"t{number}", TENANCY)
        it.run()
        it.store.close(it.transcript, "over")
    assert [t.subject.id for t in it.store.ended()] == ["t2", "t3", "t4"]
    assert it.store.find("t0") is None
    assert it.store.size_bytes == pytest.approx(3 * 1050, abs=10)


# Live output


Pieces = st.lists(st.tuples(st.sampled_from(["stdout", "stderr"]), st.integers(1, 200_000)))


@given(Pieces, st.lists(st.integers(0, 5)))
def test_live_output_is_bounded_and_every_character_is_seen_or_counted(
    pieces: list[tuple[StreamName, int]], reads: list[int]
) -> None:
    live, place = LiveOutput(), ReaderPosition()
    printed: dict[StreamName, int] = {"stdout": 0, "stderr": 0}
    accounted: dict[StreamName, int] = {"stdout": 0, "stderr": 0}
    turns = iter(reads)

    def read(most: int) -> None:
        for _ in range(most):
            if (piece := live.read(place)) is None:
                return
            stream, text, missing = piece
            accounted[stream] += len(text) + missing

    for stream, size in pieces:
        live.put(stream, "x" * size)
        printed[stream] += size
        assert live.size_bytes < HEAD_CHARS + TAIL_CHARS + 100_000
        read(next(turns, 0))
    read(len(pieces))
    for stream, _, missing in live.missing(place):
        accounted[stream] += missing
    assert accounted == printed
    for stream, text, missing in live:  # a reader that comes late
        printed[stream] -= len(text) + missing
    assert set(printed.values()) == {0}


def test_a_flood_of_tiny_pieces_is_bounded() -> None:
    live = LiveOutput()
    for _ in range(20_000):
        live.put("stdout", "x")
    assert live.size_bytes < 2 * (HEAD_CHARS + TAIL_CHARS)


# On the wire


async def test_the_last_executions_begin_where_they_were_sent(it: Bench) -> None:
    it.start_job("1")
    it.run("first")
    it.start_job("2")
    it.run("second")
    it.end_job("1")

    def told(last: int) -> list[str]:
        found = entries(it.transcript.read(last=last))[1:]
        return [
            entry.code if isinstance(entry, ExecutionStart) else f"job {entry.job}"
            for entry in found
            if isinstance(entry, ExecutionStart | JobStart | JobEnd)
        ]

    assert told(0) == []
    assert told(1) == ["second", "job 1"]
    assert told(2) == ["first", "job 2", "second", "job 1"]
    assert told(3) == ["job 1", "first", "job 2", "second", "job 1"]
