"""Answers of a supervisor become values, or an error that names the field."""

from __future__ import annotations

from typing import Any

import pytest

import samples
from nsm.wire.code import RunResult
from nsm.wire.environments import EnvironmentRow
from nsm.wire.frames import RemoteProtocolError
from nsm.wire.messages import read
from nsm.wire.sessions import KillReport, SessionRow
from nsm.wire.status import Status

ALL: list[tuple[type[object], dict[str, Any], set[str]]] = [
    (RunResult, samples.run_result(), {"clamped_from_s", "notes"}),
    (
        SessionRow,
        samples.session_row(),
        {"name", "project", "memory_bytes", "cpu_s", "limited_by"}
        | {"processes", "running_s", "queued", "taken_up", "outdated", "checkpoints"}
        | {"ports", "labels", "gpu_memory_bytes", "gpu_percent"},
    ),
    (
        EnvironmentRow,
        samples.environment_row(),
        {"problem", "cold_start", "only_for", "not_preloaded", "slow_imports", "templates"}
        | {"devices", "device_nodes"},
    ),
    (
        Status,
        samples.status(),
        {"draining", "ports"},
    ),
    (KillReport, samples.kill_report(), set()),
]


@pytest.mark.parametrize(("kind", "wire", "optional"), ALL)
def test_unknown_fields_are_ignored(
    kind: type[object], wire: dict[str, Any], optional: set[str]
) -> None:
    assert repr(read(kind, {**wire, "colour": "blue"})) == repr(
        read(kind, wire)
    )  # errors have no equality


@pytest.mark.parametrize(("kind", "wire", "optional"), ALL)
def test_each_missing_or_mistyped_field_is_named(
    kind: type[object], wire: dict[str, Any], optional: set[str]
) -> None:
    for key in wire:
        with pytest.raises(RemoteProtocolError, match=f"`{key}`"):
            read(kind, {**wire, key: b"wrong"})
        missing = {name: value for name, value in wire.items() if name != key}
        if key in optional:
            read(kind, missing)
        else:
            with pytest.raises(RemoteProtocolError, match=f"nothing for `{key}`"):
                read(kind, missing)


def test_lists_and_flags_of_answers() -> None:
    assert read(list[dict[str, Any]], {"sessions": [{}]}, "sessions") == [{}]
    assert read(bool, {"interrupted": True}, "interrupted") is True
    wrong: list[dict[str, Any]] = [{}, {"sessions": [1]}, {"sessions": {}}]
    for wire in wrong:
        with pytest.raises(RemoteProtocolError):
            read(list[dict[str, Any]], wire, "sessions")
    with pytest.raises(RemoteProtocolError):
        read(bool, {"interrupted": 1}, "interrupted")


def test_values_of_any_type_are_taken_as_they_are() -> None:
    changes = [{"key": "pool.max_spares", "old": 16, "new": None}]
    assert read(list[dict[str, object]], {"changes": changes}, "changes") == changes
