"""`nsm env found` and `nsm env use`: environments that lie in a project."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from fakesupervisor import Exchange, FakeSupervisor
from nsm.cli import main as cli
from nsm.cli.render.environments import found_table, hints
from nsm.wire.environments import FoundRow
from nsm.wire.errors import ForbiddenError
from nsm.wire.messages import read
from samples import environment_row

if TYPE_CHECKING:
    from collections.abc import Iterator

VENV: dict[str, Any] = {
    "path": ".venv",
    "kind": "venv",
    "version": "3.12.1",
    "packages": [
        {"name": "numpy", "version": "1.26", "chosen": True},
        {"name": "pandas", "version": "2.2", "chosen": True},
        {"name": "six", "version": "1.16", "chosen": False},
    ],
    "package_count": 16,
    "name": None,
    "changed": False,
    "problem": None,
}


def rows(*wire: dict[str, Any]) -> list[FoundRow]:
    return read(list[FoundRow], list(wire))


@pytest.fixture
def supervisor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeSupervisor]:
    path = str(tmp_path / "control.sock")
    monkeypatch.setenv("NSM_SOCKET", path)
    with FakeSupervisor(path) as supervisor:
        yield supervisor


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "project").mkdir()
    monkeypatch.chdir(tmp_path / "project")


def test_what_others_have_named_is_made_visible() -> None:
    evil = "a\x1b[2J\u202e'; rm -rf ~"
    packages = [{"name": evil, "version": evil, "chosen": True}]
    row = {**VENV, "path": evil, "version": evil, "packages": packages, "problem": evil}
    for text in (*hints(rows(row)), found_table(rows(row)).replace("\n", "")):
        assert text.isprintable()
    assert "`nsm env use 'a\\x1b" in hints(rows(row))[0]


def test_a_list_ends_with_what_was_found(
    supervisor: FakeSupervisor, capsys: pytest.CaptureFixture[str]
) -> None:
    supervisor.handlers["envs"] = lambda _: {"environments": [environment_row()]}
    asked: list[dict[str, Any]] = []

    def found(exchange: Exchange) -> dict[str, Any]:
        asked.append(exchange.args)
        return {"found": [VENV]}

    supervisor.handlers["env_found"] = found
    assert cli.main(["env"]) == 0
    assert capsys.readouterr().out.splitlines()[-1].startswith("found: .venv (")
    assert asked == [{"project": os.getcwd()}]
    assert cli.main(["env", "--json"]) == 0
    assert len(json.loads(capsys.readouterr().out)) == 1

    def refuse(_: Exchange) -> dict[str, Any]:
        raise ForbiddenError("no")

    supervisor.handlers["env_found"] = refuse
    assert cli.main(["env"]) == 0
    assert "found" not in capsys.readouterr().out


def test_use_and_forget(supervisor: FakeSupervisor, capsys: pytest.CaptureFixture[str]) -> None:
    asked: list[dict[str, Any]] = []

    def use(exchange: Exchange) -> dict[str, Any]:
        asked.append(exchange.args)
        return {"found": {**VENV, "name": "science"}}

    supervisor.handlers["env_use"] = use
    supervisor.handlers["env_forget"] = lambda exchange: {"name": exchange.args["target"]}
    assert cli.main(["env", "use", ".venv", "--name", "science"]) == 0
    assert "is science now: `nsm run -e science CODE`" in capsys.readouterr().out
    os.mkdir("real")
    os.symlink("real", "link")
    assert cli.main(["env", "use", os.path.abspath("link/.venv"), "--project", "link"]) == 0
    assert asked == [
        {"project": os.getcwd(), "path": ".venv", "name": "science", "wait": True},
        {"project": os.path.abspath("link"), "path": os.path.abspath("real/.venv"), "wait": True},
    ]
    capsys.readouterr()
    assert cli.main(["env", "use", "--forget", "science"]) == 0
    assert capsys.readouterr().out == "science is not used any more\n"
