"""Notebooks, checked by the schema of nbformat 4.5 (tests/support, BSD-3-Clause, Jupyter)."""

from __future__ import annotations

import json
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

import samples
from nsm.transcripts.document import Gatherer
from nsm.transcripts.notebook import notebook
from nsm.wire import transcripts

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
