"""Frames out of a jail are values or `AgentProtocolError`, never anything else."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nsmd import agentframes
from nsmd.agentframes import (
    AgentProtocolError,
    ErrorFrame,
    OtherFrame,
    OutputFrame,
    ReadyFrame,
    ResultFrame,
    StatusFrame,
)
from nsmd.values import Outcome, Truncation

GOOD: list[tuple[dict[str, Any], object]] = [
    (
        {"type": "ready", "protocol": 1, "python": "3.11.2", "capabilities": ["stream", 3]},
        ReadyFrame(protocol=1, python="3.11.2", capabilities=frozenset({"stream"})),
    ),
    (
        {"type": "ready"},
        ReadyFrame(protocol=0, python="", capabilities=frozenset()),
    ),
    (
        {"type": "output", "id": "1", "stream": "stderr", "text": "x", "new": 1},
        OutputFrame(id="1", stream="stderr", text="x"),
    ),
    (
        {"type": "result", "id": "1", "stdout": "a", "stderr": "b", "exit_code": 3},
        ResultFrame(id="1", outcome=Outcome(stdout="a", stderr="b", exit_code=3)),
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
            ),
        ),
    ),
    (
        {"type": "status", "running": None, "background": 2},
        StatusFrame(running=None, background=2),
    ),
    ({"type": "error", "message": "no"}, ErrorFrame(id=None, message="no")),
    ({"type": "pong"}, OtherFrame(type="pong")),
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
]


@pytest.mark.parametrize(("frame", "value"), GOOD)
def test_a_good_frame_is_its_value(frame: dict[str, Any], value: object) -> None:
    assert agentframes.parse(frame) == value


@pytest.mark.parametrize("frame", BAD)
def test_a_bad_frame_is_refused(frame: dict[str, Any]) -> None:
    with pytest.raises(AgentProtocolError):
        agentframes.parse(frame)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=9), inner),
    max_leaves=8,
)
FIELDS = (
    "id stream text stdout stderr exit_code duration_s displays truncated timed_out interrupted "
    "running background message protocol python capabilities seq"
).split()


@given(
    kind=st.sampled_from(["ready", "output", "result", "status", "error", "x"]) | JSON,
    fields=st.dictionaries(st.sampled_from(FIELDS), JSON),
)
def test_whatever_an_agent_says(kind: object, fields: dict[str, Any]) -> None:
    frame = {**fields, "type": kind}
    with suppress(AgentProtocolError):
        agentframes.parse(frame)
    number = agentframes.sequence(frame)
    assert number is None or number > 0
