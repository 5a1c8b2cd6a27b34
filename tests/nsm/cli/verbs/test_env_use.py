"""`nsm env found` and `nsm env use`: environments that lie in a project."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from fakesupervisor import Exchange, FakeSupervisor
from nsm.cli import main as cli
from nsm.cli.render.environments import content, found_table, hints
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
MODULES: dict[str, Any] = {
    **VENV,
    "path": "node_modules",
    "kind": "node_modules",
    "version": "",
    "packages": [],
    "package_count": 0,
    "name": "node-modules",
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


def test_words_of_what_was_found() -> None:
    assert [content(row) for row in rows(VENV, MODULES)] == [
        "Python 3.12.1, numpy, pandas and 14 more",
        "Node.js packages, no packages",
    ]
    (hint,) = hints(rows(VENV, MODULES))
    assert hint.startswith("found: .venv (Python 3.12.1, numpy, pandas and 14 more): `nsm env use")
    assert hint.endswith("`nsm env use .venv` makes it the project's")
    changed = {**VENV, "name": "venv", "changed": True}
    assert "agrees to what is there now" in hints(rows(changed))[0]
    assert "changed since you agreed" in found_table(rows(changed))
    assert "unavailable: gone" in found_table(rows({**VENV, "problem": "gone"}))
    assert found_table([]) == "No environments in this project."


def test_words_of_lists_of_packages() -> None:
    lock = {**VENV, "kind": "packages", "path": "a/uv.lock", "package_count": 7}
    plain = {**lock, "path": "requirements.txt", "package_count": 0}
    conda = {**plain, "path": "environment.yml", "problem": "not yet"}
    assert [content(row) for row in rows(lock, plain, conda)] == [
        "lock of uv, 7 packages",
        "requirements of Python",
        "packages of conda",
    ]
    assert hints(rows(lock, conda)) == [
        (
            "found: a/uv.lock (lock of uv, 7 packages): "
            "`nsm env use a/uv.lock` makes an environment of it"
        )
    ]
    assert len(hints(rows(VENV, lock, plain))) == 1, "there is a .venv"
    node = {**lock, "path": "package-lock.json"}
    assert content(rows(node)[0]) == "lock of npm, 7 packages"
    assert [hint.split()[1] for hint in hints(rows(VENV, lock, node))] == [
        ".venv",
        "package-lock.json",
    ]
    assert len(hints(rows(MODULES, node))) == 0
    used = {**lock, "name": "uv"}
    assert hints(rows(used, plain)) == []
    assert hints(rows({**used, "changed": True})) == [
        (
            "found: a/uv.lock (lock of uv, 7 packages): "
            "`nsm env use a/uv.lock` agrees to what is there now"
        )
    ]


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


def test_a_list_is_built(supervisor: FakeSupervisor, capsys: pytest.CaptureFixture[str]) -> None:
    asked: list[dict[str, Any]] = []
    build: dict[str, Any] = {
        "name": "uv",
        "reference": "/home/me/web/uv.lock",
        "state": "ready",
        "wanted_by": ["nsm env use"],
        **dict.fromkeys(("path", "built_at", "since_s", "progress", "cause", "error", "hint")),
    }

    def use(exchange: Exchange) -> dict[str, Any]:
        asked.append(exchange.args)
        row = {**VENV, "kind": "packages", "path": "uv.lock", "name": "uv", "build": build}
        return {"found": row}

    supervisor.handlers["env_use"] = use
    options = ["--no-wait", "--python", "/opt/python3", "--allow-builds"]
    options += ["--extra", "fast", "--extra", "docs", "--group", "test"]
    assert cli.main(["env", "use", "uv.lock", *options]) == 0
    assert asked[0] == {
        "project": os.getcwd(),
        "path": "uv.lock",
        "interpreter": "/opt/python3",
        "allow_builds": True,
        "extras": ["fast", "docs"],
        "groups": ["test"],
    }
    assert "is uv now: `nsm run -e uv CODE`" in capsys.readouterr().out
    build |= {"state": "failed", "error": "No such package.", "hint": "Look."}
    assert cli.main(["env", "use", "uv.lock"]) == 1
    shown = capsys.readouterr()
    assert shown.out == ""
    assert "No such package.\nLook." in shown.err
    assert cli.main(["env", "use", "uv.lock", "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["build"]["state"] == "failed"
