"""The pages of `docs/reference` say what the programs do."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path
from typing import Any, get_type_hints

import pytest

import samples
from nsm.cli.main import VERBS
from nsm.cli.top.board import Line, Totals
from nsm.wire import errors, frames, messages, operation
from nsm.wire.code import RunResult
from nsm.wire.environments import BuildProgress, BuiltRow
from nsm.wire.files import ChangeRow, FileState
from nsm.wire.host import ProgramProblem, ProgramResult, ProgramRow, ProgramsReport
from nsm.wire.inspection import Inspection, NetworkDecision, NetworkReport
from nsm.wire.sessions import SessionRow
from nsm.wire.telemetry import (
    EnvironmentStats,
    Occurrence,
    PoolKind,
    PoolMemory,
    PoolTotals,
    StartStats,
    Stats,
    Times,
)
from nsm.wire.transcripts import (
    EndedRow,
    ExecutionEnd,
    ExecutionStart,
    JobEnd,
    JobStart,
    LogEnd,
    OutputPiece,
    SessionStart,
)
from nsmd.bridge import (
    bridge,
    calls,
    definitions,
    programs,
)
from nsmd.bridge import monitor as program_monitor
from nsmd.bridge import programs as bridge_values
from nsmd.control import outgoing
from nsmd.control.operations import OPERATIONS
from nsmd.control.ops.inspection import KernelFacts
from nsmd.environments.artifacts import discovery
from nsmd.environments.builds import builder
from nsmd.host import command_monitor as monitor
from nsmd.host.descriptors import MAX_CONNECTIONS, MAX_OPEN_PORTS
from nsmd.manager import session_slots
from nsmd.mcp import render
from nsmd.mcp.attachment import VARIABLES
from nsmd.model import limits, values
from nsmd.model.settings import EnvironmentSettings, HostSettings, SecretSettings, Settings
from nsmd.ports import relay, session_ports
from nsmd.restart import ended_sessions
from nsmd.sessions import execution
from nsmd.sessions.transcripts import record, transcript
from nsmd.telemetry.telemetry import MAX_KEPT
from sandbox.transfers import MAX_OPEN_FILES

REFERENCE = Path(__file__).resolve().parents[2] / "docs/reference"
CLI = (REFERENCE / "cli.md").read_text()
JSON = (REFERENCE / "json.md").read_text()
KEYS = (REFERENCE / "configuration.md").read_text()
SOCKET = (REFERENCE / "control-socket.md").read_text()


def table(first_column: str, *, after: str, page: str = JSON) -> list[list[str]]:
    """The rows below the header whose first cell is `first_column`, after a piece of text."""
    text = page[page.index(after) :]
    lines = iter(text.splitlines())
    for line in lines:
        if line.startswith(f"| {first_column} |"):
            break
    next(lines)
    rows: list[list[str]] = []
    for line in lines:
        if not line.startswith("|"):
            break
        rows.append([cell.strip() for cell in line.strip("|").split(" | ")])
    return rows


def names(rows: list[list[str]]) -> list[str]:
    """Everything in backquotes in the first cells."""
    return [name for row in rows for name in re.findall(r"`([^`]+)`", row[0])]


def test_every_command_is_there_and_none_else() -> None:
    assert names(table("command", after="## Commands", page=CLI)) == [
        f"nsm {verb}" for verb in VERBS
    ]


def test_the_fields_of_ps() -> None:
    assert names(table("field", after="nsm ps --json")) == list(SessionRow._fields)


def test_the_fields_of_an_ended_session() -> None:
    assert names(table("ended session", after="nsm ps --all --json")) == list(EndedRow._fields)


def test_the_fields_of_top() -> None:
    section = JSON[
        JSON.index("`nsm top --json` prints") : JSON.index("`nsm status pool --json` prints")
    ]
    assert {*Totals._fields, *Line._fields[1:]} <= set(re.findall(r"\w+", section))


def test_the_fields_of_the_pool() -> None:
    section = JSON[
        JSON.index("`nsm status pool --json` prints") : JSON.index("`nsm logs --json` prints")
    ]
    assert names(table("kind", after="`nsm status pool --json`")) == list(PoolKind._fields)
    assert set(PoolTotals._fields + PoolMemory._fields) <= set(re.findall(r"\w+", section))


def test_the_fields_of_the_stats() -> None:
    section = JSON[
        JSON.index("`nsm status times --json` prints") : JSON.index("`nsm events --json`")
    ]
    assert set(Stats._fields + Times._fields) <= set(re.findall(r"\w+", section))
    assert names(table("figures", after="`nsm status times --json`")) == list(
        EnvironmentStats._fields
    )
    starts = table("starts of sessions", after="`nsm status times --json`")
    assert names(starts) == list(StartStats._fields)


def test_the_fields_of_an_event() -> None:
    section = JSON[JSON.index("`nsm events --json` prints") :]
    assert set(Occurrence._fields) <= set(re.findall(r"\w+", section[: section.index("|")]))
    assert str(MAX_KEPT) in section[: section.index("|")]


def test_the_fields_of_a_session_in_detail() -> None:
    rows = table("of a session in detail", after="`nsm inspect --json` prints")
    assert names([row[:1] for row in rows]) == list(Inspection._fields)
    (confinement,) = [row[1] for row in rows if row[0] == "`confinement`"]
    assert set(samples.inspection()["confinement"]) <= set(re.findall(r"\w+", confinement))
    (kernel,) = [row[1] for row in rows if row[0] == "`kernel`"]
    assert {f.name for f in dataclasses.fields(KernelFacts)} <= set(re.findall(r"\w+", kernel))


def test_the_fields_of_a_session_s_network() -> None:
    rows = table("network of a session", after="`nsm net --json` prints")
    assert names(rows) == list(NetworkReport._fields)
    assert set(NetworkDecision._fields) <= set(re.findall(r"\w+", rows[-1][1]))


def test_the_fields_of_a_built_environment() -> None:
    rows = table("built environment", after="nsm env builds --json")
    assert names([row[:1] for row in rows]) == list(BuiltRow._fields)
    (progress,) = [row[1] for row in rows if row[0] == "`progress`"]
    assert set(BuildProgress._fields) <= set(re.findall(r"\w+", progress))


def test_the_fields_of_the_bridge() -> None:
    begin = JSON.index("`nsm bridge ls --json` prints")
    section = JSON[begin : JSON.index("`nsm diff --json` prints")]
    assert set(ProgramsReport._fields) <= set(re.findall(r"\w+", section[: section.index("|")]))
    for first_column, kind in (
        ("program of the bridge", ProgramRow),
        ("problem of the bridge", ProgramProblem),
        ("result of a program", ProgramResult),
    ):
        assert names(table(first_column, after="nsm bridge ls --json")) == list(kind._fields)


def test_the_fields_of_a_change() -> None:
    rows = table("change", after="nsm diff --json")
    assert names([row[:1] for row in rows]) == list(ChangeRow._fields)
    (states,) = [row[1] for row in rows if row[0] == "`before`, `after`"]
    assert set(FileState._fields) <= set(re.findall(r"\w+", states))


def test_the_events_of_logs() -> None:
    rows = table("event", after="nsm logs --json")
    named = ["session", "execution", "output", "finished", "job", "job_ended", "end"]
    assert names(rows) == named
    kinds = (SessionStart, ExecutionStart, OutputPiece, ExecutionEnd, JobStart, JobEnd, LogEnd)
    for row, fields in zip(rows, [kind._fields for kind in kinds], strict=True):
        assert set(fields) <= set(re.findall(r"\w+", row[1])), row


def test_the_fields_of_a_result() -> None:
    documented = names(table("field", after="`nsm run --json` prints"))
    assert documented == list(RunResult._fields)


def test_the_variables_of_a_client_entry() -> None:
    assert set(names(table("variable", after="Of a client entry", page=KEYS))) == set(VARIABLES)


def settings_rows() -> list[str]:
    """The configuration's keys and defaults as rows of the page."""
    rows: list[str] = []
    for section in dataclasses.fields(Settings):
        kind = get_type_hints(Settings)[section.name]
        if section.name == "environments":
            rows += [
                f"| `[environments.NAME] {field.name}` | none |"
                for field in dataclasses.fields(EnvironmentSettings)
            ]
            continue
        if section.name == "hosts":
            rows += _rows_of("hosts.NAME", HostSettings)
            continue
        if section.name == "secrets":
            rows += [
                f"| `[secrets.NAME] {field.name.rstrip('_')}` | none |"
                for field in dataclasses.fields(SecretSettings)
            ]
            continue
        rows += _rows_of(section.name, kind)
    return rows


def _rows_of(section: str, kind: type[Any]) -> list[str]:
    rows: list[str] = []
    for field in dataclasses.fields(kind):
        of_field = get_type_hints(kind)[field.name]
        if dataclasses.is_dataclass(of_field) and isinstance(of_field, type):
            rows += _rows_of(f"{section}.{field.name}", of_field)
        else:
            rows.append(f"| `[{section}] {field.name}` | {_shown(field.default)} |")
    return rows


def _shown(default: object) -> str:
    match default:
        case None | () | dataclasses.MISSING:  # which is that of a table
            return "none"
        case bool():
            return str(default).lower()
        case float():
            return f"{default:.0f}"
        case str():
            return f'`"{default}"`'
        case _:
            return str(default)


def test_every_key_of_the_configuration_with_its_default() -> None:
    section = KEYS[KEYS.index("## Configuration") : KEYS.index("## Variables")]
    rows = [line.rsplit(" | ", 1) for line in section.splitlines() if line.startswith("| `[")]
    assert [f"{key_and_default} |" for key_and_default, _ in rows] == settings_rows()
    assert all(len(means) > len("x |") for _, means in rows)


@pytest.mark.parametrize(
    "limit",
    [
        values.MAX_CODE_BYTES,
        frames.MAX_FRAME_BYTES,
        messages.MAX_IN_FLIGHT,
        MAX_CONNECTIONS,
        MAX_OPEN_PORTS,
        session_ports.MAX_SESSION_PORTS,
        relay.MAX_CONNECTIONS,
        session_slots.MAX_WAITING,
        outgoing.MAX_WAITING_BYTES,
        outgoing.MAX_PENDING_CHARS,
        outgoing.MAX_TOGETHER_CHARS,
        execution.MAX_RESULTS,
        execution.MAX_RESULT_BYTES,
        ended_sessions.MAX_ENDED,
        transcript.MAX_ENDED_KEPT,
        transcript.MAX_TOTAL_BYTES,
        int(limits.MESSAGES_PER_S),
        limits.BURST,
        transcript.MAX_TRANSCRIPT_BYTES,
        record.MAX_CODE_CHARS,
        record.MAX_STREAM_CHARS,
        record.MAX_SHOWN_CHARS,
        record.HEAD_CHARS + record.TAIL_CHARS,
        discovery.MAX_ARTIFACTS,
        discovery.MAX_METADATA_BYTES,
        operation.PIECE_BYTES,
        MAX_OPEN_FILES,
        builder.CONCURRENT_BUILDS,
        builder.MAX_QUEUED,
        builder.MAX_ADDED,
        builder.MAX_REFERENCES,
        monitor.MAX_HEAD_BYTES,
        monitor.MAX_END_BYTES,
        definitions.MAX_DEFINITIONS,
        definitions.MAX_FILE_BYTES,
        definitions.MAX_FRONT_MATTER_CHARACTERS,
        bridge_values.MAX_DESCRIPTION_CHARACTERS,
        bridge_values.MAX_VARIABLES,
        int(bridge_values.MAX_TIMEOUT_S),
        bridge_values.MAX_ARGUMENTS,
        programs.MAX_ARGUMENT_BYTES,
        programs.MAX_TOGETHER_BYTES,
        bridge.MAX_CALLS_OF_ONE,
        calls.MAX_KEPT,
        calls.MAX_KEPT_BYTES,
        program_monitor.BATCH_LINES,
        program_monitor.PIECE_CHARS,
        program_monitor.MAX_WAITING_LINES,
        program_monitor.MAX_WAITING_CHARS,
        render.MAX_IMAGE_CHARS,
        render.MAX_IMAGE_SIDE,
        render.MAX_IMAGES,
        render.MAX_IMAGES_CHARS,
    ],
)
def test_fixed_limits(limit: int) -> None:
    section = KEYS[KEYS.index("## Fixed limits") :]
    assert re.search(rf"\b{limit}\b", section)


def test_every_operation_with_its_right() -> None:
    documented = {
        names([row])[0]: row[1] for row in table("operation", after="# Control", page=SOCKET)
    }
    assert documented == {name: row.right + "*" * row.own for name, row in OPERATIONS.items()}


def test_every_error_code() -> None:
    codes = {
        kind.code
        for kind in vars(errors).values()
        if isinstance(kind, type) and issubclass(kind, errors.NsmError)
    }
    section = SOCKET[SOCKET.index("the codes:") :]
    assert set(re.findall(r"`([a-z-]+)`", section)) == codes
