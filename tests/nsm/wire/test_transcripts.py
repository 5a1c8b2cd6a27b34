"""Answers of `logs` and of the operations on one session, checked."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

import samples
from nsm.wire import transcripts
from nsm.wire.code import Truncation
from nsm.wire.errors import SessionEndedError
from nsm.wire.files import FileInfo, FilePiece, OpenFile
from nsm.wire.frames import RemoteProtocolError
from nsm.wire.messages import read
from nsm.wire.sessions import Check, Completions
from nsm.wire.transcripts import (
    DisplayedValue,
    EndedRow,
    ExecutionEnd,
    ExecutionStart,
    LogEnd,
    OutputPiece,
    SessionStart,
)

if TYPE_CHECKING:
    pass

OUTPUT = {"execution_id": "x-1", "stream": "stderr", "text": "hm"}


def test_entries() -> None:
    start = transcripts.entry("session", samples.session_start(name=None, dropped=3))
    assert isinstance(start, SessionStart)
    assert (start.name, start.dropped, start.started_at) == (None, 3, 1_700_000_000.5)
    execution = transcripts.entry("execution", samples.execution_start(number=7))
    assert isinstance(execution, ExecutionStart)
    assert (execution.number, execution.code) == (7, "print(1)")
    assert transcripts.entry("output", OUTPUT) == OutputPiece("x-1", "stderr", "hm", 0)
    assert transcripts.entry("output", OUTPUT | {"skipped": 5}) == OutputPiece(
        "x-1", "stderr", "hm", 5
    )


def test_the_end_of_an_execution() -> None:
    end = transcripts.entry(
        "finished",
        samples.execution_end(
            displays=[{"data": {"text/plain": "42"}, "omitted": {"image/png": 9000}}],
            truncated={"stdout": {"omitted_bytes": 5, "file": None}},
            new_field=1,
        ),
    )
    assert isinstance(end, ExecutionEnd)
    assert end.displays == (DisplayedValue({"text/plain": "42"}, {"image/png": 9000}),)
    assert end.truncated == {"stdout": Truncation(5, None)}
    assert end.error is None


def test_an_execution_without_an_exit_code_says_why() -> None:
    error = SessionEndedError("it ended", hint="Start another.").to_wire()
    end = transcripts.entry("finished", samples.execution_end(exit_code=None, error=error))
    assert isinstance(end, ExecutionEnd)
    assert end.exit_code is None
    assert isinstance(end.error, SessionEndedError)
    assert end.error.hint == "Start another."


def test_events_of_a_newer_supervisor_are_passed_over() -> None:
    assert transcripts.entry("weather", {"rain": True}) is None


@pytest.mark.parametrize(
    ("event", "data"),
    [
        ("session", samples.session_start(started_at="now")),
        ("session", {}),
        ("execution", samples.execution_start(code=None)),
        ("output", OUTPUT | {"stream": "stdin"}),
        ("output", OUTPUT | {"skipped": "5"}),
        ("finished", samples.execution_end(displays=[5])),
        ("finished", samples.execution_end(displays=[{"data": {"a": 1}, "omitted": {}}])),
        ("finished", samples.execution_end(displays=[{"data": {}, "omitted": {"a": "b"}}])),
        ("finished", samples.execution_end(truncated={"stdout": 5})),
        ("finished", samples.execution_end(error="no")),
    ],
)
def test_entries_of_the_wrong_shape(event: str, data: dict[str, Any]) -> None:
    with pytest.raises(RemoteProtocolError):
        transcripts.entry(event, data)


def test_what_comes_after_a_transcript() -> None:
    end = read(LogEnd, samples.log_end(state="ended", end_reason="idle timeout"))
    assert (end.state, end.end_reason, end.executions) == ("ended", "idle timeout", 1)
    row = read(EndedRow, samples.ended_row(name=None))
    assert (row.name, row.reason, row.lived_s) == (None, "idle timeout", 61.5)


def test_what_a_session_answers() -> None:
    found = read(Completions, {"start": 0, "end": 2, "matches": ["print"], "available": True})
    assert found == Completions(0, 2, ("print",), True)
    assert read(Check, {"status": "incomplete", "indent": "    "}) == Check("incomplete", "    ")
    opened = read(OpenFile, samples.open_file(file=3, size=5))
    assert opened == OpenFile(3, FileInfo("/workspace/a", 5, 0o644))
    assert read(FilePiece, {"data": b"\x00", "eof": True}) == FilePiece(b"\x00", True)


@pytest.mark.parametrize(
    ("kind", "wire"),
    [
        (Completions, {"start": 0, "end": 2, "matches": [1], "available": True}),
        (Completions, {"start": True, "end": 2, "matches": [], "available": True}),
        (Check, {"status": 1, "indent": ""}),
        (OpenFile, samples.open_file(size=None)),
        (FilePiece, {"data": "text", "eof": True}),
        (FilePiece, {"data": b"", "eof": None}),
        (LogEnd, {}),
        (EndedRow, samples.ended_row(ended_s=None)),
    ],
)
def test_answers_of_the_wrong_shape(kind: type[object], wire: dict[str, Any]) -> None:
    with pytest.raises(RemoteProtocolError):
        read(kind, wire)
