"""`nsm http`, against a fake supervisor and a directory of the test's."""

from __future__ import annotations

import importlib.util
import json
from typing import TYPE_CHECKING, Any

import pytest

import samples
from fakesupervisor import answer

if TYPE_CHECKING:
    from pathlib import Path

    from cli_bench import Nsm
    from fakesupervisor import FakeSupervisor

FACTS: dict[str, Any] = samples.status()["http"] | {"problem": "", "displaced": 0, "refused": {}}


@pytest.fixture(autouse=True)
def _state(path: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))


@pytest.fixture
def supervisor(supervisor: FakeSupervisor) -> FakeSupervisor:
    supervisor.handlers["http"] = answer(**FACTS)
    return supervisor


def rows(text: str) -> dict[str, str]:
    split = [row.split(maxsplit=1) for row in text.splitlines()]
    return {name: value for name, value in split}  # noqa: C416  # dict() does not say so of types


def test_status_tells_the_problem_and_the_refusals(nsm: Nsm, supervisor: FakeSupervisor) -> None:
    refused = {"token": 3, "host": 1}
    more = {"url": "", "problem": "the port is\x1b[31m taken", "refused": refused}
    supervisor.handlers["http"] = answer(**FACTS | more)
    code, out, _ = nsm("http", "status")
    assert code == 1
    told = rows(out)
    assert told["problem"] == "the port is\\x1b[31m taken"
    assert told["refused"] == "1 for host, 3 for token"


def test_the_token_needs_no_supervisor(nsm: Nsm, tmp_path: Path) -> None:
    first = nsm("http", "token").out.strip()
    told = json.loads(nsm("http", "token", "--json").out)
    assert told == {"token": first, "file": str(tmp_path / "state" / "nsm" / "http-token")}


def test_after_another_one_was_made_the_supervisor_looks(
    nsm: Nsm, supervisor: FakeSupervisor
) -> None:
    looks: list[object] = []

    def look(arguments: object) -> dict[str, Any]:
        looks.append(arguments)
        return FACTS

    supervisor.handlers["http"] = look
    first = nsm("http", "token").out
    assert looks == []
    assert nsm("http", "token", "--rotate").out not in ("", first)
    assert len(looks) == 1


def test_a_file_that_others_can_read_is_not_shown(nsm: Nsm, tmp_path: Path) -> None:
    token = nsm("http", "token").out.strip()
    (tmp_path / "state" / "nsm" / "http-token").chmod(0o644)
    code, out, problem = nsm("http", "token")
    assert (code, out) == (1, "")
    assert "open to others (mode 0644)" in problem
    assert token not in problem


def test_no_token_is_made_in_a_box(
    nsm: Nsm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def nothing(_name: str) -> None:
        return None

    monkeypatch.setattr(importlib.util, "find_spec", nothing)
    code, out, problem = nsm("http", "token")
    assert (code, out) == (1, "")
    assert "In a box it never is: ask outside of it" in problem
    assert not (tmp_path / "state" / "nsm" / "http-token").exists()
