"""Results: what a supervisor answers becomes values, or an error that names the field."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias

import pytest

import samples
from nsm.wire.errors import ForbiddenError, UnknownSessionError
from nsm.wire.frames import RemoteProtocolError
from nsm.wire.results import (
    EnvironmentRow,
    KillReport,
    RunResult,
    SessionRow,
    Status,
    Truncation,
    flag,
    rows,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

KILL_REPORT: dict[str, Any] = {
    "killed": [{"id": "s-1", "name": "a"}, {"id": "s-2", "name": None}],
    "errors": [
        {
            "target": "b",
            "error": {"code": "unknown-session", "message": "no b", "hint": "nsm ps", "data": {}},
        }
    ],
}

Take: TypeAlias = "Callable[[Mapping[str, Any]], Any]"

ALL: list[tuple[Take, dict[str, Any], set[str]]] = [
    (RunResult.from_wire, samples.run_result(), {"clamped_from_s", "notes"}),
    (
        SessionRow.from_wire,
        samples.session_row(),
        {"name", "project", "memory_bytes", "cpu_s", "limited_by"}
        | {"processes", "running_s", "queued", "taken_up"},
    ),
    (EnvironmentRow.from_wire, samples.environment_row(), {"problem", "cold_start", "only_for"}),
    (Status.from_wire, samples.status(), {"limits", "draining", "audit", "survival", "bridge"}),
    (KillReport.from_wire, KILL_REPORT, set()),
]


def test_a_run_result() -> None:
    result = RunResult.from_wire(
        samples.run_result(
            stdout="hi",
            truncated={"stdout": {"omitted_bytes": 5, "file": "/tmp/x"}},
            displays=[{"text/plain": "1"}],
            timeout_s=5,
            clamped_from_s=60.0,
            notes=["policy: network is off"],
        )
    )
    assert result.stdout == "hi"
    assert result.truncated == {"stdout": Truncation(5, "/tmp/x")}
    assert result.displays == ({"text/plain": "1"},)
    assert result.session.name == "a"
    assert (result.timeout_s, result.clamped_from_s) == (5, 60.0)
    assert result.notes == ("policy: network is off",)


def test_a_session_row_has_the_fields_of_the_wire_in_their_order() -> None:
    wire = samples.session_row()
    assert SessionRow.from_wire(wire)._asdict() == wire
    assert list(SessionRow._fields) == list(wire)


def test_a_kill_report() -> None:
    report = KillReport.from_wire(KILL_REPORT)
    assert [(one.id, one.name) for one in report.killed] == [("s-1", "a"), ("s-2", None)]
    assert report.errors[0].target == "b"
    assert isinstance(report.errors[0].error, UnknownSessionError)


def test_status_and_environments() -> None:
    assert Status.from_wire(samples.status()).jail.uid == 1000
    assert Status.from_wire(samples.status(jail={"kind": "x"})).jail.note == ""
    assert EnvironmentRow.from_wire(samples.environment_row(aliases=["py"])).aliases == ("py",)


def test_the_status_that_a_box_is_told() -> None:
    with pytest.raises(ForbiddenError, match="version 1\\.2 is there"):
        Status.from_wire({"version": "1.2"})


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
        RunResult.from_wire(samples.run_result(**changes))


def test_lists_and_flags_of_answers() -> None:
    assert rows({"sessions": [{}]}, "sessions") == ({},)
    assert flag({"interrupted": True}, "interrupted") is True
    wrong: list[dict[str, Any]] = [{}, {"sessions": [1]}, {"sessions": {}}]
    for wire in wrong:
        with pytest.raises(RemoteProtocolError):
            rows(wire, "sessions")
    with pytest.raises(RemoteProtocolError):
        flag({"interrupted": 1}, "interrupted")
    with pytest.raises(RemoteProtocolError):
        EnvironmentRow.from_wire(samples.environment_row(aliases=[1]))
