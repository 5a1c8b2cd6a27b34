"""Notes about the output of programs."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import pytest

from denial_notes import note, notes_of
from nsmd.denials.messages import PHRASES

HERE = Path(__file__).parent


def table(name: str) -> list[Any]:
    rows = tomllib.loads((HERE / name).read_text())["said"]
    assert len({row["name"] for row in rows}) == len(rows)
    return [pytest.param(row, id=row["name"]) for row in rows]


def heard(row: dict[str, Any]) -> tuple[str, ...]:
    return notes_of(
        row.get("stderr", ""),
        stdout=row.get("stdout", ""),
        code=row.get("code", ""),
        exit_code=row.get("exit_code", 1),
        interpreter_restarted="restarted" in row,
        restart_reason=row.get("restarted", ""),
        mode=row.get("mode", "readonly"),
    )


@pytest.mark.parametrize("row", table("denied.toml"))
def test_output_that_a_rule_caused_is_explained(row: dict[str, Any]) -> None:
    assert heard(row) == (note(row["note"]),)


@pytest.mark.parametrize("row", table("ordinary.toml"))
def test_output_that_no_rule_caused_is_not_explained(row: dict[str, Any]) -> None:
    assert heard(row) == ()


def test_every_phrase_was_said_by_some_program() -> None:
    said = [row.values[0] for row in table("denied.toml")]
    lines = [line for row in said for line in row.get("stderr", "").splitlines()]
    lines += [line for row in said for line in row.get("stdout", "").splitlines()]
    unheard = [p.pattern.pattern for p in PHRASES if not any(map(p.pattern.search, lines))]
    assert not unheard
