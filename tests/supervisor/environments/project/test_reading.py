"""Environments that lie in projects, whoever wrote them, found by reading files."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest

from nsmd.environments.project import reading
from nsmd.environments.project.reading import (
    MAX_ENTRIES,
    NoEnvironmentError,
    find_all,
    read,
)
from realjail import mount_of
from venvs import install, make_project_venv


@pytest.fixture
def project(tmp_path: Path) -> Path:
    path = tmp_path / "project"
    path.mkdir()
    return path


def test_a_virtual_environment_is_found(project: Path) -> None:
    library = make_project_venv(project / ".venv", "numpy-1.26.4", "ruff-0.5")
    install(library, "certifi-2024.1", chosen=False)
    install(library, "pip-23")
    (found,) = find_all(mount_of(project))
    assert (found.kind, found.path, found.home) == ("venv", ".venv", "/usr/bin")
    assert [(p.name, p.version) for p in found.packages] == [
        ("numpy", "1.26.4"),
        ("ruff", "0.5"),
        ("certifi", "2024.1"),
    ]
    assert {"numpy", "ruff"} <= set(found.modules)
    again = read(mount_of(project), ".venv", details=False)
    assert again.packages == ()
    assert again.packages_key == found.packages_key
    install(library, "flask-3")
    changed = read(mount_of(project), ".venv")
    assert changed.packages_key != found.packages_key
    assert changed.interpreter_key == found.interpreter_key
    (project / ".venv/bin/python").unlink()
    (project / ".venv/bin/python").symlink_to("/project/mine")
    assert read(mount_of(project), ".venv").interpreter_key != found.interpreter_key


def test_packages_of_node_are_found(project: Path) -> None:
    modules = project / "node_modules"
    modules.mkdir()
    (project / "package.json").write_text('{"dependencies": {"zod": "^3"}}')
    for name in ("zod", "@types", "ansi"):
        (modules / name).mkdir()
    (found,) = find_all(mount_of(project))
    assert [p.name for p in found.packages] == ["zod", "ansi"]
    rows = {
        "node_modules/ansi": {"version": "6.1.0"},
        "node_modules/zod": {"version": "3.2.1"},
        "node_modules/zod/node_modules/ansi": {"version": "1.0.0"},
        "node_modules/@types/node": {"version": "20.1.0"},
        "node_modules/\x1b[2J": {"version": "1.0.0"},
    }
    (modules / ".package-lock.json").write_text(json.dumps({"packages": rows}))
    (found,) = find_all(mount_of(project))
    assert [(p.name, p.version, p.chosen) for p in found.packages] == [
        ("zod", "3.2.1", True),
        ("@types/node", "20.1.0", False),
        ("ansi", "6.1.0", False),
    ]


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "names no directory"),
        ("home = bin\nversion = 3.11.2\n", "names no directory"),
        ("home = /usr/bin\x1b[2J\nversion = 3.11.2\n", "names no directory"),
        ("home = /usr/bin\n", "names no version"),
        ("home = /usr/bin\nversion = ../../../etc\n", "names no version"),
        ("home = /usr/bin\nversion = " + "9" * 5000, "names no version"),
        ("\0" * 100_000, "names no directory"),
    ],
)
def test_a_file_that_says_something_else_is_refused(project: Path, text: str, why: str) -> None:
    (project / ".venv").mkdir()
    (project / ".venv/pyvenv.cfg").write_text(text)
    with pytest.raises(NoEnvironmentError, match=why):
        read(mount_of(project), ".venv")
    assert find_all(mount_of(project)) == []


def test_no_link_is_followed(project: Path, tmp_path: Path) -> None:
    make_project_venv(tmp_path / "elsewhere", "secret-1")
    (project / ".venv").symlink_to(tmp_path / "elsewhere")
    assert find_all(mount_of(project)) == []
    for path in (".venv", "venv", ".venv/..", "../elsewhere", "/etc", "a\0b"):
        with pytest.raises((NoEnvironmentError, OSError)):
            read(mount_of(project), path)
    make_project_venv(project / "venv")
    (library,) = (project / "venv").glob("lib/python3*")
    shutil.rmtree(library / "site-packages")
    (library / "site-packages").symlink_to(next((tmp_path / "elsewhere").glob("lib/*/site-*")))
    with pytest.raises(NoEnvironmentError, match="follows no links"):
        read(mount_of(project), "venv")
    (project / "venv/pyvenv.cfg").unlink()
    (project / "venv/pyvenv.cfg").symlink_to(tmp_path / "elsewhere/pyvenv.cfg")
    with pytest.raises(NoEnvironmentError, match="follows no links"):
        read(mount_of(project), "venv")


@pytest.mark.parametrize("name", [".venv/pyvenv.cfg", "node_modules/.package-lock.json"])
def test_a_pipe_holds_nobody_up(project: Path, name: str) -> None:
    (project / name).parent.mkdir()
    os.mkfifo(project / name)
    with pytest.raises(NoEnvironmentError, match="not a regular file"):
        read(mount_of(project), name.partition("/")[0])


def test_a_huge_directory_is_read_in_part(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "MAX_ENTRIES", 50)
    library = make_project_venv(project / ".venv")
    for number in range(100):
        (library / f"package{number}-1.dist-info").mkdir()
    (found,) = find_all(mount_of(project))
    assert 0 < len(found.packages) <= 50 < MAX_ENTRIES


@pytest.mark.parametrize(
    "text", ["[" * 100_000, '{"packages": 7}', '{"packages": {"a": 1}}', "\xff"]
)
def test_any_list_of_npm_is_survived(project: Path, text: str) -> None:
    (project / "node_modules/zod").mkdir(parents=True)
    (project / "node_modules/.package-lock.json").write_text(text)
    (project / "package.json").write_text(text)
    (found,) = find_all(mount_of(project))
    assert {package.name for package in found.packages} <= {"zod", "a"}


def test_packages_with_unprintable_names_are_left_out(project: Path) -> None:
    library = make_project_venv(project / ".venv")
    for name in ("evil\x1b[2J-1.dist-info", "evil\n-1.dist-info", "a\u202eb-1.dist-info"):
        (library / name).mkdir()
    (library / os.fsdecode(b"\xff-1.dist-info")).mkdir()
    (found,) = find_all(mount_of(project))
    assert found.packages == ()


def test_another_directory_in_its_place_is_noticed(project: Path) -> None:
    make_project_venv(project / ".venv")
    old = mount_of(project)
    project.rename(project.with_name("moved"))
    project.mkdir()
    with pytest.raises(NoEnvironmentError, match="another directory"):
        read(old, ".venv")
