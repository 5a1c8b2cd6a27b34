"""`nsm http`, against a fake supervisor and a directory of the test's."""

from __future__ import annotations

import importlib.util
import json
from typing import TYPE_CHECKING, Any

import pytest

from fakesupervisor import FakeSupervisor
from nsm.cli import main as cli

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

FACTS: dict[str, Any] = {
    "enabled": True,
    "listen": "127.0.0.1:0",
    "url": "http://127.0.0.1:4711/mcp",
    "problem": "",
    "connections": 2,
    "max_connections": 64,
    "displaced": 0,
    "refused": {},
}


@pytest.fixture(autouse=True)
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    path = str(tmp_path / "control.sock")
    monkeypatch.setenv("NSM_SOCKET", path)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return path


@pytest.fixture
def supervisor(path: str) -> Iterator[FakeSupervisor]:
    with FakeSupervisor(path) as supervisor:
        supervisor.handlers["http"] = lambda _: FACTS
        yield supervisor


def rows(text: str) -> dict[str, str]:
    split = [row.split(maxsplit=1) for row in text.splitlines()]
    return {name: value for name, value in split}  # noqa: C416  # dict() does not say so of types


def test_what_is_wrong(capsys: pytest.CaptureFixture[str], supervisor: FakeSupervisor) -> None:
    refused = {"token": 3, "host": 1}
    more = {"url": "", "problem": "the port is\x1b[31m taken", "refused": refused}
    supervisor.handlers["http"] = lambda _: FACTS | more
    assert cli.main(["http", "status"]) == 1
    told = rows(capsys.readouterr().out)
    assert told["problem"] == "the port is\\x1b[31m taken"
    assert told["refused"] == "1 for host, 3 for token"


def test_the_token_needs_no_supervisor(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert cli.main(["http", "token"]) == 0
    first = capsys.readouterr().out.strip()
    assert cli.main(["http", "token", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told == {"token": first, "file": str(tmp_path / "state" / "nsm" / "http-token")}


def test_after_another_one_was_made_the_supervisor_looks(
    capsys: pytest.CaptureFixture[str], supervisor: FakeSupervisor
) -> None:
    looks: list[object] = []

    def look(arguments: object) -> dict[str, Any]:
        looks.append(arguments)
        return FACTS

    supervisor.handlers["http"] = look
    assert cli.main(["http", "token"]) == 0
    assert looks == []
    assert cli.main(["http", "token", "--rotate"]) == 0
    first, second = capsys.readouterr().out.split()
    assert first != second
    assert len(looks) == 1


def test_a_file_that_others_can_read_is_not_shown(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    cli.main(["http", "token"])
    token = capsys.readouterr().out.strip()
    (tmp_path / "state" / "nsm" / "http-token").chmod(0o644)
    assert cli.main(["http", "token"]) == 1
    out, problem = capsys.readouterr()
    assert out == ""
    assert "open to others (mode 0644)" in problem
    assert token not in problem


def test_no_token_is_made_in_a_box(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def nothing(_name: str) -> None:
        return None

    monkeypatch.setattr(importlib.util, "find_spec", nothing)
    assert cli.main(["http", "token"]) == 1
    out, problem = capsys.readouterr()
    assert out == ""
    assert "In a box it never is: ask outside of it" in problem
    assert not (tmp_path / "state" / "nsm" / "http-token").exists()
