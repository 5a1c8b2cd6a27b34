"""Answers of a supervisor become values, or an error that names the field."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias

import pytest

import samples
from nsm.wire.environments import EnvironmentRow
from nsm.wire.fields import flag_of, rows_of
from nsm.wire.frames import RemoteProtocolError
from nsm.wire.live import KillReport, SessionRow
from nsm.wire.results import RunResult
from nsm.wire.status import Status

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

Take: TypeAlias = "Callable[[Mapping[str, Any]], Any]"

ALL: list[tuple[Take, dict[str, Any], set[str]]] = [
    (RunResult.from_wire, samples.run_result(), {"clamped_from_s", "notes"}),
    (
        SessionRow.from_wire,
        samples.session_row(),
        {"name", "project", "memory_bytes", "cpu_s", "limited_by"}
        | {"processes", "running_s", "queued", "taken_up", "outdated"},
    ),
    (
        EnvironmentRow.from_wire,
        samples.environment_row(),
        {"problem", "cold_start", "only_for", "not_preloaded"},
    ),
    (
        Status.from_wire,
        samples.status(),
        {"limits", "draining", "audit", "survival", "bridge", "http"},
    ),
    (KillReport.from_wire, samples.kill_report(), set()),
]


@pytest.mark.parametrize(("take", "wire", "optional"), ALL)
def test_unknown_fields_are_ignored(take: Take, wire: dict[str, Any], optional: set[str]) -> None:
    assert repr(take({**wire, "colour": "blue"})) == repr(take(wire))  # errors have no equality


@pytest.mark.parametrize(("take", "wire", "optional"), ALL)
def test_each_missing_or_mistyped_field_is_named(
    take: Take, wire: dict[str, Any], optional: set[str]
) -> None:
    for key in wire:
        with pytest.raises(RemoteProtocolError, match=f"`{key}`"):
            take({**wire, key: b"wrong"})
        missing = {name: value for name, value in wire.items() if name != key}
        if key in optional:
            take(missing)
        else:
            with pytest.raises(RemoteProtocolError, match=f"nothing for `{key}`"):
                take(missing)


def test_lists_and_flags_of_answers() -> None:
    assert rows_of({"sessions": [{}]}, "sessions") == ({},)
    assert flag_of({"interrupted": True}, "interrupted") is True
    wrong: list[dict[str, Any]] = [{}, {"sessions": [1]}, {"sessions": {}}]
    for wire in wrong:
        with pytest.raises(RemoteProtocolError):
            rows_of(wire, "sessions")
    with pytest.raises(RemoteProtocolError):
        flag_of({"interrupted": 1}, "interrupted")
