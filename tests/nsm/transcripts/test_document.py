"""Transcripts read from files that anybody may have made."""

from __future__ import annotations

import io
import json
from typing import Any

import pytest

import samples
from nsm.transcripts import document
from nsm.transcripts.document import Gatherer, SessionTranscript, TranscriptError, read_transcript
from nsm.wire import transcripts

OUTPUT = {"event": "output", "execution_id": "x-1", "stream": "stdout", "text": "1\n"}


def lines(**changes: Any) -> list[dict[str, Any]]:
    """The lines of a transcript; `changes` are those of one event, by its name."""
    events = [
        {"event": "session", **samples.session_start()},
        {"event": "execution", **samples.execution_start()},
        OUTPUT,
        {"event": "finished", **samples.execution_end()},
        {"event": "end", **samples.log_end()},
    ]
    return [event | changes.get(str(event["event"]), {}) for event in events]


def read(events: list[Any] | bytes) -> SessionTranscript:
    if not isinstance(events, bytes):
        events = b"".join(json.dumps(event).encode() + b"\n" for event in events)
    return read_transcript(io.BytesIO(events), "it")


def test_a_file_written_by_logs_is_read() -> None:
    job = {"job": "1", "client": "nsm", "command": "ls", "command_omitted": 0, "started_at": 1.0}
    events = lines()
    events.insert(1, {"event": "weather", "rain": True})
    events.insert(2, {"event": "job", **job})
    transcript = read(events)
    assert transcript.from_file
    assert transcript.whole
    assert len(transcript.items) == 2
    (execution,) = transcript.executions
    assert execution.start.code == "print(1)"
    assert execution.printed("stdout") == ["1\n"]
    assert execution.printed("stderr") == [""]
    assert execution.end is not None
    assert execution.end.exit_code == 0


@pytest.mark.parametrize(
    ("events", "why"),
    [
        ([], "it is empty"),
        (b"\x00\xff", "line 1 is not an event"),
        (b"[" * 200_000, "line 1 is not an event"),
        (b'{"event":' * 100_000, "line 1 is not an event"),
        ([1], "line 1 is not an event"),
        ([{"event": ["session"]}], "it is empty"),
        (lines(session={"started_at": float("nan")}), "line 1 is not an event"),
        (lines(session={"dropped": 10**18}), "a number that cannot be (line 1)"),
        (lines(session={"interpreter": "ruby"}), "its interpreter is 'ruby' (line 1)"),
        (lines(session={"env": 5}), "it has int for `env`"),
        (lines(execution={"code": "\ud800"}), "half a character (line 2)"),
        (lines(execution={"number": 0}), "do not rise (line 2)"),
        (lines(execution={"started_at": 1e300}), "a time that cannot be (line 2)"),
        (lines(output={"skipped": -1}), "a number that cannot be (line 3)"),
        (lines(output={"execution_id": "x-2"}), "did not begin (line 3)"),
        (lines(finished={"duration_s": -1.0}), "a time that cannot be (line 4)"),
        (lines(finished={"exit_code": 10**30}), "a number that cannot be (line 4)"),
        (lines()[1:], "does not begin with a session (line 1)"),
        (lines()[:-1] + lines(), "it has two sessions (line 5)"),
        (lines() + lines(), "line 6 follows its end"),
    ],
)
def test_files_that_are_no_transcript(events: list[Any] | bytes, why: str) -> None:
    with pytest.raises(TranscriptError) as caught:
        read(events)
    assert caught.value.message.startswith("it is not a transcript: ")
    assert why in caught.value.message
    assert "nsm logs SESSION --json" in caught.value.hint


def test_bounds_of_a_file(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(document, "MAX_EXECUTIONS", 2)
    execution = lines()[1]
    many = [execution | {"number": n, "execution_id": str(n)} for n in range(1, 5)]
    with pytest.raises(TranscriptError, match="more than 2 executions"):
        read([lines()[0], *many])
    monkeypatch.setattr(document, "MAX_FILE_BYTES", 1 << 20)
    with pytest.raises(TranscriptError, match="larger than 1 MiB"):
        read(b" " * (1 << 20) + b" ")


def test_a_transcript_that_is_told_again() -> None:
    """A lost connection has `logs` begin again."""
    gatherer = Gatherer()
    for event in [*lines()[:3], *lines()[:-1]]:
        entry = transcripts.entry(event["event"], event)
        assert entry is not None
        gatherer.take(entry)
    (execution,) = gatherer.transcript().executions
    assert execution.printed("stdout") == ["1\n"]
