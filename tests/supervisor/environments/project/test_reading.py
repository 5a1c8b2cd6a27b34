"""Environments and lists of packages in projects, whoever wrote them, and nsm's copies of lists."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest

from nsmd.environments.project import package_lists, reading
from nsmd.environments.project.package_lists import MAX_FILES, ListCopies, is_list, signature
from nsmd.environments.project.reading import MAX_ENTRIES, NoEnvironmentError, find_all, read
from nsmd.model.packages import WantedPackages
from nsmd.packages.locks import MAX_LOCK_BYTES
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


def write(folder: Path, **files: str) -> None:
    for name, text in files.items():
        path = folder / name.replace("__", "/").replace("_", ".")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def why_not(project: Path, path: str) -> str:
    with pytest.raises(NoEnvironmentError) as caught:
        package_lists.read(mount_of(project), path)
    return str(caught.value)


def test_lists_are_found_by_name(project: Path) -> None:
    write(project, uv_lock="", pyproject_toml="[project]\ndependencies = []", environment_yml="")
    for name in ("requirements.txt", "dev-requirements.txt", "requirements_test.in", "notes.txt"):
        (project / name).touch()
    (project / "poetry.lock").symlink_to("/etc/passwd")
    os.mkfifo(project / "pixi.lock")
    found = ["dev-requirements.txt", "environment.yml", "requirements.txt"]
    assert package_lists.find_all(mount_of(project)) == [*found, "requirements_test.in", "uv.lock"]
    (project / "uv.lock").unlink()
    assert "pyproject.toml" in package_lists.find_all(mount_of(project))
    (project / "pyproject.toml").write_text("[tool.ruff]\nline-length = 100")
    assert "pyproject.toml" not in package_lists.find_all(mount_of(project))
    assert is_list("backend/uv.lock")
    assert not is_list(".venv")


def test_a_lock_comes_with_its_project(project: Path) -> None:
    write(project, a__uv_lock="\n[[package]]\n\n[[package]]\n", a__pyproject_toml="x")
    found = package_lists.read(mount_of(project), "a/uv.lock")
    assert (list(found.files), found.count) == (["a/uv.lock", "a/pyproject.toml"], 2)
    assert found.wanted("/copy") == WantedPackages(project="/copy/a/pyproject.toml")
    assert list(package_lists.read(mount_of(project), "a/pyproject.toml").files) == [
        "a/pyproject.toml",
        "a/uv.lock",
    ]
    write(project, a__pyproject_toml="[tool.ruff]")
    again = package_lists.read(mount_of(project), "a/uv.lock")
    assert again.found == found.found, "a lock says all about the packages"
    (project / "a/pyproject.toml").unlink()
    assert package_lists.read(mount_of(project), "a/uv.lock").found == found.found
    (project / "a/pyproject.toml").symlink_to("/etc/passwd")
    assert "follows no links" in why_not(project, "a/uv.lock")


def test_requirements_come_with_what_they_include(project: Path) -> None:
    write(
        project,
        requirements__dev_txt="-r base.txt\n-r ../requirements.txt # all\npytest",
        requirements__base_txt="-r dev.txt\nflask",
        requirements_txt="--requirement=requirements/base.txt",
    )
    found = package_lists.read(mount_of(project), "requirements/dev.txt")
    assert list(found.files) == [
        "requirements/dev.txt",
        "requirements/base.txt",
        "requirements.txt",
    ]
    assert found.wanted("/copy") == WantedPackages(
        requirements="/copy/requirements/dev.txt", included_below="/copy"
    )
    before = signature(mount_of(project), found.files)
    assert signature(mount_of(project), found.files) == before
    write(project, requirements__base_txt="flask>=2")
    assert signature(mount_of(project), found.files) != before
    assert package_lists.read(mount_of(project), "requirements/dev.txt").found != found.found


@pytest.mark.parametrize(
    "included", ["/etc/passwd", "../outside.txt", "link.txt", "pipe.txt", "folder", "gone.txt"]
)
def test_no_file_outside_is_read(project: Path, included: str) -> None:
    write(project, requirements_txt=f"-r {included}")
    write(project.parent, outside_txt="secret")
    (project / "link.txt").symlink_to(project.parent / "outside.txt")
    (project / "folder").mkdir()
    os.mkfifo(project / "pipe.txt")
    assert why_not(project, "requirements.txt").startswith(f"{included}: ")


def test_hostile_lists_are_refused(project: Path) -> None:
    for name in ("link.lock", "uv.lock"):
        (project / name).symlink_to("/etc/passwd")
    assert "follows no links" in why_not(project, "uv.lock")
    (project / "uv.lock").unlink()
    os.mkfifo(project / "uv.lock")
    assert "not a regular file" in why_not(project, "uv.lock")
    (project / "uv.lock").unlink()
    with (project / "uv.lock").open("wb") as file:
        file.truncate(100 << 20)
    assert why_not(project, "uv.lock") == f"its files have more than {MAX_LOCK_BYTES >> 20} MiB"
    assert why_not(project, "x/" * 1000 + "uv.lock").startswith("a path in it has more than")
    (project / "requirements.txt").write_bytes(b"\xff\xfe-r \x00")
    assert package_lists.read(mount_of(project), "requirements.txt").files
    for number in range(MAX_FILES + 1):
        (project / f"{number}.txt").write_text(f"-r {number + 1}.txt")
    assert why_not(project, "0.txt") == f"it is made of more than {MAX_FILES} files"


def test_copies_stay_as_they_were(project: Path, tmp_path: Path) -> None:
    copies = ListCopies(str(tmp_path / "state/copies"))
    write(project, uv_lock="1", pyproject_toml="x")
    first = copies.keep("/a", package_lists.read(mount_of(project), "uv.lock"))
    write(project, pyproject_toml="y")
    assert copies.keep("/a", package_lists.read(mount_of(project), "uv.lock")) != first
    write(project, pyproject_toml="x")
    assert copies.keep("/a", package_lists.read(mount_of(project), "uv.lock")) == first
    assert copies.keep("/b", package_lists.read(mount_of(project), "uv.lock")) != first
    write(project, uv_lock="2")
    second = copies.keep("/a", package_lists.read(mount_of(project), "uv.lock"))
    assert Path(first, "uv.lock").read_text() == "1"
    assert Path(second, "uv.lock").read_text() == "2"
    assert (tmp_path / "state/copies").stat().st_mode & 0o777 == 0o700
    copies.keep_only([f"{second}/pyproject.toml"])
    assert [str(path) for path in (tmp_path / "state/copies").iterdir()] == [second]
