"""Transcripts: read from files that anybody may have made, repeated, and as notebooks."""

from __future__ import annotations

import io
import json
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

import samples
from nsm.transcripts import document
from nsm.transcripts.comparison import MAX_COLUMNS, MAX_LINES, compare
from nsm.transcripts.document import (
    Gatherer,
    RecordedExecution,
    SessionTranscript,
    TranscriptError,
    read_transcript,
)
from nsm.transcripts.notebook import notebook
from nsm.wire import transcripts
from nsm.wire.code import PLACE, RunResult, Truncation
from nsm.wire.messages import read
from nsm.wire.transcripts import ExecutionEnd, ExecutionStart, OutputPiece

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


def parsed(events: list[Any] | bytes) -> SessionTranscript:
    if not isinstance(events, bytes):
        events = b"".join(json.dumps(event).encode() + b"\n" for event in events)
    return read_transcript(io.BytesIO(events), "it")


def test_a_file_written_by_logs_is_read() -> None:
    job = {"job": "1", "client": "nsm", "command": "ls", "command_omitted": 0, "started_at": 1.0}
    events = lines()
    events.insert(1, {"event": "weather", "rain": True})
    events.insert(2, {"event": "job", **job})
    transcript = parsed(events)
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
        parsed(events)
    assert caught.value.message.startswith("it is not a transcript: ")
    assert why in caught.value.message
    assert "nsm logs SESSION --json" in caught.value.hint


def test_bounds_of_a_file(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(document, "MAX_EXECUTIONS", 2)
    execution = lines()[1]
    many = [execution | {"number": n, "execution_id": str(n)} for n in range(1, 5)]
    with pytest.raises(TranscriptError, match="more than 2 executions"):
        parsed([lines()[0], *many])
    monkeypatch.setattr(document, "MAX_FILE_BYTES", 1 << 20)
    with pytest.raises(TranscriptError, match="larger than 1 MiB"):
        parsed(b" " * (1 << 20) + b" ")


def test_a_transcript_that_is_told_again() -> None:
    """A lost connection has `logs` begin again."""
    gatherer = Gatherer()
    for event in [*lines()[:3], *lines()[:-1]]:
        entry = transcripts.entry(event["event"], event)
        assert entry is not None
        gatherer.take(entry)
    (execution,) = gatherer.transcript().executions
    assert execution.printed("stdout") == ["1\n"]


# Recorded executions beside their repetition.


def recorded(stdout: str = "", stderr: str = "", **end: Any) -> RecordedExecution:
    pieces = (OutputPiece("x-1", "stdout", stdout), OutputPiece("x-1", "stderr", stderr))
    return RecordedExecution(
        read(ExecutionStart, samples.execution_start()),
        pieces,
        read(ExecutionEnd, samples.execution_end(**end)),
    )


def result(stdout: str = "", stderr: str = "", **changes: Any) -> RunResult:
    plain: dict[str, Any] = {"displays": [], "truncated": {}, "exit_code": 0}
    outcome = read(RunResult, samples.run_result(stdout=stdout, stderr=stderr, **plain))
    return outcome._replace(**changes)


def test_differences_are_told_by_line() -> None:
    found = compare(recorded("a\nb\nc\n", exit_code=0), result("a\nB\nc\n", "no\n", exit_code=1))
    assert [(each.what, each.lines) for each in found] == [
        ("ending", ("- exit code 0", "+ exit code 1")),
        ("stdout", ("  a", "- b", "+ B")),
    ]


def test_addresses_and_numbers_of_executions_are_not_compared() -> None:
    old, new = recorded("<a at 0x7f01>\n<exec 3>"), result("<a at 0x7f02>\n<exec 2>")
    assert not compare(old, new)
    (found,) = compare(old, result("<a at 0x7f02>\n<exec 2>\nmore"))
    assert found.lines == ("  <exec 3>", "+ more")


def test_long_differences_are_cut() -> None:
    found = compare(recorded("x" * 1000), result("\n".join("y" * 300 for _ in range(1000))))
    lines = found[0].lines
    assert len(lines) == MAX_LINES + 1
    assert max(map(len, lines)) == MAX_COLUMNS + 2
    assert lines[-1] == "  [...]"


def test_output_with_gaps_is_compared_by_its_ends() -> None:
    gap = "\n[... 50 bytes left out ...]\n"
    cut = {"stdout": Truncation(50, None)}
    old = recorded(f"head\nx{gap}y\ntail\n", truncated={"stdout": {"omitted_bytes": 50}})
    whole = "head\n" + "more\n" * 20 + "tail\n"
    assert not compare(old, result(whole))
    assert not compare(old, result(f"head\nand{gap}tail\n", truncated=cut))
    assert compare(old, result(whole.replace("tail", "toil")))
    assert compare(old, result(f"heed\nand{gap}tail\n", truncated=cut))
    # Of nobody's truncation, the line is text.
    assert compare(recorded(f"head{gap}tail"), result("head and tail"))
    pieces = (OutputPiece("x-1", "stdout", "a\nb"), OutputPiece("x-1", "stdout", "c\nd\n", 5))
    kept = recorded()._replace(pieces=pieces)
    assert not compare(kept, result("a\nb12345c\nd\n"))
    assert compare(kept, result("a\nb12345c\ne\n"))


def test_displayed_values_are_compared_as_text() -> None:
    shown = [
        {"data": {"text/plain": "42"}, "omitted": {"application/json": 5}},
        {"data": {"image/png": "AAAA"}, "omitted": {}},
        {"data": {}, "omitted": {"text/plain": 100_000}},
    ]
    new = (
        {"text/plain": "42", "application/json": [1]},
        {"text/plain": "<Figure>", "image/png": "BBBB", PLACE: 1},
        {"text/plain": "x" * 100_000},
    )
    old = recorded(displays=shown)
    assert not compare(old, result(displays=new))
    (found,) = compare(old, result(displays=({"text/plain": "43"}, *new[1:])))
    assert (found.what, found.lines) == ("values", ("- 42", "+ 43"))
    (found,) = compare(old, result(displays=new[:1]))
    assert found.what == "values"


# Notebooks, checked by the schema of nbformat 4.5 (tests/support, BSD-3-Clause, Jupyter).


SCHEMA = Path(__file__).parents[2] / "support" / "nbformat.v4.5.schema.json"

TRACEBACK = """\
Traceback (most recent call last):
  File "<exec 1>", line 1, in <module>
    int("x")
ValueError: invalid literal
"""


def made(events: list[tuple[str, dict[str, Any]]], **session: Any) -> dict[str, Any]:
    """The notebook of a transcript, which is valid."""
    gatherer = Gatherer()
    for event, data in [("session", samples.session_start(**session)), *events]:
        entry = transcripts.entry(event, data)
        assert entry is not None
        gatherer.take(entry)
    book: dict[str, Any] = json.loads(json.dumps(notebook(gatherer.transcript())))
    import_module("jsonschema").validate(book, json.loads(SCHEMA.read_text()))
    ids = [cell["id"] for cell in book["cells"]]
    assert len(ids) == len(set(ids))
    return book


def ran(
    *pieces: tuple[str, str], interpreter: str = "python", start: Any = None, **end: Any
) -> list[Any]:
    """The outputs of one execution."""
    events: list[tuple[str, dict[str, Any]]] = [
        ("execution", samples.execution_start(**(start or {})))
    ]
    for stream, text in pieces:
        events.append(("output", {"execution_id": "x-1", "stream": stream, "text": text}))
    events.append(("finished", samples.execution_end(**end)))
    (cell,) = made(events, interpreter=interpreter)["cells"]
    outputs: list[Any] = cell["outputs"]
    return outputs


def test_a_cell_for_each_execution() -> None:
    job = {"job": "1", "client": "nsm", "command": "ls", "command_omitted": 0, "started_at": 1.0}
    book = made(
        [
            ("execution", samples.execution_start(number=7)),
            ("finished", samples.execution_end()),
            ("job", job),
            ("execution", samples.execution_start(number=8, code="x", code_omitted=5000)),
        ]
    )
    assert book["metadata"]["kernelspec"]["name"] == "python3"
    first, second, third = book["cells"]
    assert (first["source"], first["execution_count"]) == ("print(1)", 7)
    assert second["cell_type"] == "raw"
    assert "ls" in second["source"]
    assert third["source"] == "x\n# [5,000 characters of code left out]"
    assert third["outputs"] == []


def test_printed_text_and_displayed_values_are_outputs() -> None:
    displays = [
        {"data": {"text/plain": "<Figure>", "image/png": "AAAA"}, "omitted": {}},
        {"data": {}, "omitted": {"image/png": 9000}},
        {"data": {"text/plain": "42", "text/html": "<b>42</b>"}, "omitted": {}},
    ]
    outputs = ran(("stdout", "a"), ("stdout", "b\n"), ("stderr", "c\n"), displays=displays)
    assert [output["output_type"] for output in outputs] == [
        *("stream", "stream", "display_data", "display_data", "execute_result")
    ]
    assert outputs[0]["text"] == "ab\n"
    assert outputs[2]["data"]["image/png"] == "AAAA"
    assert outputs[3]["data"] == {"text/plain": "[left out: image/png, 9,000 characters]"}
    assert outputs[4]["execution_count"] == 1


def test_a_traceback_is_an_error() -> None:
    first, error = ran(("stderr", f"warning\n{TRACEBACK}"), exit_code=1)
    assert first["text"] == "warning\n"
    assert (error["ename"], error["evalue"]) == ("ValueError", "invalid literal")
    assert error["traceback"][0] == "Traceback (most recent call last):"
    (error,) = ran(
        ("stderr", "Uncaught TypeError: no\n    at <exec-1>:1:20\n"),
        interpreter="node",
        exit_code=1,
    )
    assert (error["ename"], error["evalue"]) == ("TypeError", "no")


@pytest.mark.parametrize("text", ["", "no such file\n", "Traceback (most recent call last):\n"])
def test_other_failures_are_no_traceback(text: str) -> None:
    outputs = ran(("stderr", text), exit_code=1)
    assert [output["output_type"] for output in outputs] == ["stream"]
    assert ran(exit_code=1) == []
    (stream,) = ran(("stderr", TRACEBACK), interpreter="bash", exit_code=1)
    assert stream["text"] == TRACEBACK
    (stream,) = ran(("stderr", TRACEBACK))  # logged by code that did not fail
    assert stream["output_type"] == "stream"


def test_code_that_nsm_stopped() -> None:
    (error,) = ran(timed_out=True, exit_code=124, duration_s=2.0)
    assert (error["ename"], error["evalue"]) == ("TimedOut", "after 2.0 s")
    (error,) = ran(interrupted=True, exit_code=130, duration_s=2.0)
    assert error["ename"] == "Interrupted"
    why: dict[str, Any] = {"code": "session-ended", "message": "It ended.", "hint": "", "data": {}}
    (error,) = ran(exit_code=None, error=why)
    assert (error["ename"], error["evalue"]) == ("NotRun", "It ended.")
