"""Answers of `logs` and of the operations on one session, checked."""

from __future__ import annotations

from typing import Any

import pytest

import samples
from nsm.wire import transcripts
from nsm.wire.frames import RemoteProtocolError

OUTPUT = {"execution_id": "x-1", "stream": "stderr", "text": "hm"}


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
