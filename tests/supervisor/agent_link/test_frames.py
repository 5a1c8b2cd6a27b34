"""Frames out of a jail are values or `AgentProtocolError`, never anything else."""

from __future__ import annotations

import base64
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nsm.wire.code import Truncation
from nsmd.agent_link import frames
from nsmd.agent_link.file_frames import (
    DetailedFile,
    FileDataFrame,
    FileEntriesFrame,
    FileErrorFrame,
    FileFrame,
)
from nsmd.agent_link.frames import (
    AgentProtocolError,
    CheckedFrame,
    CompletionsFrame,
    ErrorFrame,
    OutputFrame,
    ReadyFrame,
    ResultFrame,
)
from nsmd.model.values import Outcome

DIRECTORY: dict[str, Any] = {"type": "file_directory", "id": "f", "path": "/a", "free_bytes": None}
ENTRIES: dict[str, Any] = {"type": "file_entries", "id": "f", "path": "/a", "entries": []}

GOOD: list[tuple[dict[str, Any], object]] = [
    (
        {"type": "ready", "protocol": 1, "python": "3.11.2", "capabilities": ["stream", 3]},
        ReadyFrame(protocol=1, python="3.11.2", capabilities=frozenset({"stream"})),
    ),
    ({"type": "ready"}, ReadyFrame(protocol=0, python="", capabilities=frozenset())),
    (
        {"type": "output", "id": "1", "stream": "stderr", "text": "x", "new": 1},
        OutputFrame(id="1", stream="stderr", text="x"),
    ),
    (
        {
            "type": "result",
            "id": "1",
            "stdout": "",
            "stderr": "",
            "exit_code": 137,
            "duration_s": 2,
            "displays": [{"text/plain": "1"}],
            "truncated": {"stdout": {"omitted_bytes": 5, "file": "/workspace/.nsm/1"}},
            "timed_out": True,
            "interpreter_restarted": True,
            "restart_reason": "it died",
            "imports": {"pandas": 0.5, "matplotlib.pyplot": 1},
        },
        ResultFrame(
            id="1",
            outcome=Outcome(
                stdout="",
                stderr="",
                exit_code=137,
                duration_s=2.0,
                displays=({"text/plain": "1"},),
                truncated={"stdout": Truncation(omitted_bytes=5, file="/workspace/.nsm/1")},
                timed_out=True,
                interpreter_restarted=True,
                restart_reason="it died",
                imports={"pandas": 0.5, "matplotlib.pyplot": 1},
            ),
        ),
    ),
    (
        {"type": "file_data", "id": "f", "data": "A" * 4 * 87381},
        FileDataFrame(id="f", data=bytes(3 * 87381), eof=False),
    ),
    (
        {"type": "file_data", "id": "f", "data": base64.b64encode(bytes(256 * 1024)).decode()},
        FileDataFrame(id="f", data=bytes(256 * 1024), eof=False),
    ),
    (
        {"type": "file", "id": "f", "path": "/a", "size": 0, "permissions": 0, "free_bytes": 9},
        FileFrame(id="f", path="/a", size=0, permissions=0, free_bytes=9),
    ),
    (
        {**ENTRIES, "entries": [["a\nb", "file", 3, 0o644, 9], ["\udcff" * 255, "link", 0, 0, 0]]},
        FileEntriesFrame(
            id="f",
            path="/a",
            entries=(
                DetailedFile("a\nb", "file", 3, 0o644, 9),
                DetailedFile("\udcff" * 255, "link", 0, 0, 0),
            ),
        ),
    ),
    (
        {"type": "file_error", "id": "f", "message": "no room", "code": "ENOSPC"},
        FileErrorFrame(id="f", message="no room", code="ENOSPC"),
    ),
    (
        {
            "type": "completions",
            "id": "c",
            "start": 1,
            "end": 3,
            "matches": ["abs", "a\x1b[2J", "\u00e4\u4e2d"],
            "available": True,
        },
        CompletionsFrame(id="c", start=1, end=3, matches=("abs", "\u00e4\u4e2d"), available=True),
    ),
    (
        {"type": "checked", "id": "c", "status": "incomplete", "indent": " \t "},
        CheckedFrame(id="c", status="incomplete", indent=" \t "),
    ),
    ({"type": "error", "message": "no"}, ErrorFrame(id=None, message="no")),
]

BAD: list[dict[str, Any]] = [
    {},
    {"type": 1},
    {"type": "output", "id": "1", "stream": "stdin", "text": "x"},
    {"type": "output", "id": 1, "stream": "stdout", "text": "x"},
    {"type": "output", "id": "1", "stream": "stdout"},
    {"type": "result", "id": "1"},
    {"type": "result", "id": "1", "exit_code": True},
    {"type": "result", "id": "1", "exit_code": 2**60},
    {"type": "result", "id": "1", "exit_code": 0, "stdout": b"x"},
    {"type": "result", "id": "1", "exit_code": 0, "duration_s": float("inf")},
    {"type": "result", "id": "1", "exit_code": 0, "duration_s": "1"},
    {"type": "result", "id": "1", "exit_code": 0, "duration_s": 10**400},
    {"type": "result", "id": "1", "exit_code": 0, "duration_s": True},
    {"type": "result", "id": "1", "exit_code": 0, "displays": {}},
    {"type": "result", "id": "1", "exit_code": 0, "displays": ["x"]},
    {"type": "result", "id": "1", "exit_code": 0, "displays": [{}] * 1001},
    {"type": "result", "id": "1", "exit_code": 0, "truncated": {"stdout": 3}},
    {"type": "result", "id": "1", "exit_code": 0, "timed_out": 1},
    {"type": "result", "id": "1", "exit_code": 0, "restart_reason": "x" * 20_000},
    {
        "type": "result",
        "id": "1",
        "exit_code": 0,
        "truncated": {"stdout": {"omitted_bytes": 1, "file": "x" * 20_000}},
    },
    {"type": "error", "id": "1", "message": "x" * 20_000},
    {"type": "status", "background": "many"},
    {"type": "ready", "capabilities": "all"},
    {"type": "file", "path": "/a", "size": 3, "permissions": 0},
    {"type": "file", "id": "f", "path": "/a", "size": -1, "permissions": 0},
    {"type": "file", "id": "f", "path": "/a", "size": 3.0, "permissions": 0},
    {"type": "file", "id": "f", "path": "/a", "size": 3, "permissions": 0o10000},
    {"type": "file", "id": "f", "path": "/a", "size": 3},
    {"type": "file", "id": "f", "path": "x" * 20_000, "size": 3, "permissions": 0},
    {"type": "file_data", "id": "f", "data": "A"},
    {"type": "file_data", "id": "f", "data": "A A="},
    {"type": "file_data", "id": "f", "data": "\u00e4AA="},
    {"type": "file_data", "id": "f", "data": 3},
    {"type": "file_data", "id": "f", "data": "AAAA" * 87382},
    {"type": "file_data", "id": "f", "data": "", "eof": "yes"},
    {"type": "file_data", "id": None, "data": ""},
    {"type": "file_closed", "id": "f", "path": None, "size": 3},
    {"type": "file_closed", "id": "f", "path": "/a", "size": 2**60},
    {**ENTRIES, "entries": None},
    {**ENTRIES, "entries": [["a", "file", 1]]},
    {**ENTRIES, "entries": [["a", "file", -1, 0, 0]]},
    {**ENTRIES, "entries": [["a", "file", 1, 0o10000, 0]]},
    {**ENTRIES, "entries": [["a", "exe", 1, 0, 0]]},
    {**ENTRIES, "entries": [["a", [], 1, 0, 0]]},
    {**ENTRIES, "entries": [["a", "file", 1, 0, 0]] * 10_001},
    *(
        {**ENTRIES, "entries": [[name, kind, 0, 0, 0]]}
        for name in ("", ".", "..", "/etc", "a/b", "a\0", "\ud800", "x" * 1021, 3, None)
        for kind in ("file", "directory")
    ),
    {**ENTRIES, "free_bytes": -1},
    {**DIRECTORY, "free_bytes": -1},
    {**DIRECTORY, "path": 1},
    {"type": "file_error", "id": 1, "message": "x"},
    {"type": "file_error", "id": "f", "message": "x", "code": 28},
    {"type": "file_error", "id": "f", "message": "x", "code": "E" * 41},
    {"type": "file_error", "id": "f", "message": "x", "code": "E NO"},
    {"type": "file_error", "id": "f", "message": "x" * 20_000},
    {"type": "completions", "id": "c", "start": 3, "end": 1},
    {"type": "completions", "id": "c", "start": -1, "end": 1},
    {"type": "completions", "id": "c", "start": 0, "end": 1, "matches": "abc"},
    {"type": "completions", "id": "c", "start": 0, "end": 1, "matches": [1]},
    {"type": "completions", "id": "c", "start": 0, "end": 1, "matches": ["x" * 1001]},
    {"type": "completions", "id": "c", "start": 0, "end": 1, "matches": ["x"] * 501},
    {"type": "completions", "id": "c", "start": 0, "end": 1, "available": 1},
    {"type": "completions", "start": 0, "end": 1},
    {"type": "checked", "id": "c", "status": "fine"},
    {"type": "checked", "id": "c", "status": ["complete"]},
    {"type": "checked", "id": "c", "status": "complete", "indent": "  x"},
    {"type": "checked", "id": "c", "status": "complete", "indent": " " * 1001},
    {"type": "checked", "id": "c", "status": "complete", "indent": "\n"},
    {"type": "checked", "status": "complete"},
    {"type": "resumed", "executions": {f"{number}.x": "finished" for number in range(65)}},
    {"type": "resumed", "executions": {"1." + "x" * 255: "running"}},
    {"type": "resumed", "executions": {"1.\x1b]0;x\x07": "running"}},
    {"type": "resumed", "recent": ["x" * 257]},
    {"type": "resumed", "files": ["\n"]},
    {"type": "resumed", "executions": []},
    {"type": "resumed", "executions": {"1.x": "running"}, "notes": {"1.x": {"note": 1}}},
    {"type": "resumed", "count": -1},
    {"type": "resumed", "checkpoints": -1},
    *(
        {"type": "result", "id": "1", "exit_code": 0, "displays": [], "imports": imports}
        for imports in (
            ["pandas"],
            {"pandas": "1"},
            {"pandas": -1},
            {"pandas": 1e9},
            {"pandas": float("nan")},
            {"pan das": 1},
            {"\u0430": 1},
            {"x" * 101: 1},
            {f"m{number}": 1 for number in range(17)},
        )
    ),
]


@pytest.mark.parametrize(("frame", "value"), GOOD)
def test_a_good_frame_is_its_value(frame: dict[str, Any], value: object) -> None:
    assert frames.parse(frame) == value


@pytest.mark.parametrize("frame", BAD)
def test_a_bad_frame_is_refused(frame: dict[str, Any]) -> None:
    with pytest.raises(AgentProtocolError):
        frames.parse(frame)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=9), inner),
    max_leaves=8,
)
FIELDS = (
    "id stream text stdout stderr exit_code duration_s displays truncated timed_out interrupted "
    "running background message protocol python capabilities seq "
    "path size permissions code data eof start end matches available status indent "
    "entries whole free_bytes executions files recent notes count"
).split()
KINDS = (
    "ready output result status error file file_data file_closed file_directory file_entries "
    "file_error completions checked resumed x"
).split()


@given(kind=st.sampled_from(KINDS) | JSON, fields=st.dictionaries(st.sampled_from(FIELDS), JSON))
def test_whatever_an_agent_says(kind: object, fields: dict[str, Any]) -> None:
    frame = {**fields, "type": kind}
    with suppress(AgentProtocolError):
        frames.parse(frame)
    number = frames.sequence(frame)
    assert number is None or number > 0


def test_errors_quote_little_of_what_a_jail_sent() -> None:
    """They reach logs, clients and other users of the terminal."""
    for key in ("A" * 100_000, "\x1b[2Jevil\n\ud800"):
        for frame in (
            {"type": "result", "id": "x", "exit_code": 0, "truncated": {key: 5}},
            {"type": "resumed", "executions": {key: "running"}},
            {"type": "status", "running": [key]},
        ):
            with pytest.raises(AgentProtocolError) as caught:
                frames.parse(frame)
            assert len(str(caught.value)) < 400
            assert str(caught.value).isprintable()


class Unread(dict[str, Any]):
    """An item that must not be looked at."""

    def get(self, *_: object) -> Any:
        raise AssertionError("it was read")


@pytest.mark.parametrize(
    "frame",
    [
        {"type": "file_entries", "id": "x", "path": "/", "entries": [Unread()] * 10_001},
        {"type": "completions", "id": "x", "start": 0, "end": 0, "matches": [Unread()] * 501},
        {"type": "result", "id": "x", "exit_code": 0, "displays": [Unread()] * 1001},
        {"type": "result", "id": "x", "exit_code": 0, "truncated": dict.fromkeys("abc", Unread())},
        {"type": "resumed", "executions": {str(n): Unread() for n in range(65)}},
    ],
)
def test_items_beyond_a_limit_are_not_read(frame: dict[str, Any]) -> None:
    with pytest.raises(AgentProtocolError, match="at most"):
        frames.parse(frame)


def test_nothing_unasked_for_is_read_of_what_an_agent_resumes_with() -> None:
    frame = {
        "type": "resumed",
        "notes": {str(n): Unread() for n in range(1000)},
        "files": [str(n) for n in range(1000)],
        "recent": [str(n) for n in range(1000)],
    }
    found = frames.parse(frame)
    assert isinstance(found, frames.ResumedFrame)
    assert (len(found.files), len(found.recent), found.executions) == (100, 100, ())
