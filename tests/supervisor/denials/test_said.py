"""Output that a rule caused, or no rule; files that the project has elsewhere."""

from __future__ import annotations

import dataclasses
import tomllib
from pathlib import Path
from typing import Any

import pytest

from denial_notes import note, notes_of, project
from nsmd.denials.messages import PHRASES
from nsmd.host.paths import has_below

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


PANDAS = """\
Traceback (most recent call last):
  File "<exec 1>", line 1, in <module>
    pd.read_csv("{}")
  File "/usr/lib/python3/dist-packages/pandas/io/common.py", line 859, in get_handle
    handle = open(
FileNotFoundError: [Errno 2] No such file or directory: '{}'
"""


@pytest.fixture
def shop(tmp_path: Path) -> Path:
    (tmp_path / "data").mkdir()
    (tmp_path / "sales.csv").touch()
    (tmp_path / "data" / "x").touch()
    (tmp_path / "link").symlink_to("/etc")
    return tmp_path


@pytest.mark.parametrize(
    ("said", "path"),
    [
        (PANDAS, "sales.csv"),
        ("cat: {}: No such file or directory", "sales.csv"),
        ("bash: line 3: ./{}: No such file or directory", "data/x"),
        ("ls: cannot access '{}': No such file or directory", "data"),
        ("Uncaught Error: ENOENT: no such file or directory, open '{}'", "data/x"),
        ("python3: can't open file '/workspace/{}': [Errno 2] No such file or directory", "data/x"),
    ],
)
def test_the_result_says_where_the_file_is(shop: Path, said: str, path: str) -> None:
    seen = dataclasses.replace(project(), path=str(shop))
    text = said.replace("{}", path)
    note = f"/workspace is the working directory; the file is at /project/{path}"
    assert notes_of(text, seen=seen) == (note,)
    assert notes_of(text, seen=seen, exit_code=0) == ()
    assert notes_of(said.replace("{}", "other.csv"), seen=seen) == ()


@pytest.mark.parametrize("path", ["link/passwd", "link", "../passwd", "data/../../etc", "x\0y", ""])
def test_no_link_is_followed_out_of_the_project(shop: Path, path: str) -> None:
    assert not has_below(str(shop), path)
    assert has_below(str(shop), "./data//x")
