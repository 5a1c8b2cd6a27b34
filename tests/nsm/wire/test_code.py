"""Results as values."""

from __future__ import annotations

from typing import Any

import pytest

import samples
from nsm.wire.code import RunResult, Truncation
from nsm.wire.frames import RemoteProtocolError
from nsm.wire.messages import read


def test_a_run_result() -> None:
    result = read(
        RunResult,
        samples.run_result(
            stdout="hi",
            truncated={"stdout": {"omitted_bytes": 5, "file": "/tmp/x"}},
            displays=[{"text/plain": "1"}],
            timeout_s=5,
            clamped_from_s=60.0,
            notes=["policy: network is off"],
        ),
    )
    assert result.stdout == "hi"
    assert result.truncated == {"stdout": Truncation(5, "/tmp/x")}
    assert result.displays == ({"text/plain": "1"},)
    assert result.session.name == "a"
    assert (result.timeout_s, result.clamped_from_s) == (5, 60.0)
    assert result.notes == ("policy: network is off",)


@pytest.mark.parametrize(
    "changes",
    [
        {"exit_code": True},
        {"exit_code": 1.0},
        {"duration_s": "1"},
        {"timed_out": 1},
        {"displays": [1]},
        {"truncated": {"stdout": 5}},
        {"truncated": {"stdout": {"omitted_bytes": None, "file": None}}},
        {"session": {"id": 5}},
        {"session": {"id": "s", "name": 1, "created": True, "replaced": None}},
    ],
)
def test_wrong_types_inside_a_run_result(changes: dict[str, Any]) -> None:
    with pytest.raises(RemoteProtocolError):
        read(RunResult, samples.run_result(**changes))
