"""Lists of packages in projects, whoever wrote them, and nsm's copies of them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from nsmd.environments.project.package_lists import (
    MAX_FILES,
    ListCopies,
    find_all,
    is_list,
    read,
    signature,
)
from nsmd.environments.project.reading import NoEnvironmentError
from nsmd.model.packages import WantedPackages
from nsmd.packages.locks import MAX_LOCK_BYTES
from realjail import mount_of


@pytest.fixture
def project(tmp_path: Path) -> Path:
    path = tmp_path / "project"
    path.mkdir()
    return path


def write(folder: Path, **files: str) -> None:
    for name, text in files.items():
        path = folder / name.replace("__", "/").replace("_", ".")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def why_not(project: Path, path: str) -> str:
    with pytest.raises(NoEnvironmentError) as caught:
        read(mount_of(project), path)
    return str(caught.value)


def test_lists_are_found_by_name(project: Path) -> None:
    write(project, uv_lock="", pyproject_toml="[project]\ndependencies = []", environment_yml="")
    for name in ("requirements.txt", "dev-requirements.txt", "requirements_test.in", "notes.txt"):
        (project / name).touch()
    (project / "poetry.lock").symlink_to("/etc/passwd")
    os.mkfifo(project / "pixi.lock")
    found = ["dev-requirements.txt", "environment.yml", "requirements.txt"]
    assert find_all(mount_of(project)) == [*found, "requirements_test.in", "uv.lock"]
    (project / "uv.lock").unlink()
    assert "pyproject.toml" in find_all(mount_of(project))
    (project / "pyproject.toml").write_text("[tool.ruff]\nline-length = 100")
    assert "pyproject.toml" not in find_all(mount_of(project))
    assert is_list("backend/uv.lock")
    assert not is_list(".venv")


def test_a_lock_comes_with_its_project(project: Path) -> None:
    write(project, a__uv_lock="\n[[package]]\n\n[[package]]\n", a__pyproject_toml="x")
    found = read(mount_of(project), "a/uv.lock")
    assert (list(found.files), found.count) == (["a/uv.lock", "a/pyproject.toml"], 2)
    assert found.wanted("/copy") == WantedPackages(project="/copy/a/pyproject.toml")
    assert list(read(mount_of(project), "a/pyproject.toml").files) == [
        "a/pyproject.toml",
        "a/uv.lock",
    ]
    write(project, a__pyproject_toml="[tool.ruff]")
    again = read(mount_of(project), "a/uv.lock")
    assert again.found == found.found, "a lock says all about the packages"
    (project / "a/pyproject.toml").unlink()
    assert read(mount_of(project), "a/uv.lock").found == found.found
    (project / "a/pyproject.toml").symlink_to("/etc/passwd")
    assert "follows no links" in why_not(project, "a/uv.lock")


def test_requirements_come_with_what_they_include(project: Path) -> None:
    write(
        project,
        requirements__dev_txt="-r base.txt\n-r ../requirements.txt # all\npytest",
        requirements__base_txt="-r dev.txt\nflask",
        requirements_txt="--requirement=requirements/base.txt",
    )
    found = read(mount_of(project), "requirements/dev.txt")
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
    assert read(mount_of(project), "requirements/dev.txt").found != found.found


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
    assert read(mount_of(project), "requirements.txt").files
    for number in range(MAX_FILES + 1):
        (project / f"{number}.txt").write_text(f"-r {number + 1}.txt")
    assert why_not(project, "0.txt") == f"it is made of more than {MAX_FILES} files"


def test_copies_stay_as_they_were(project: Path, tmp_path: Path) -> None:
    copies = ListCopies(str(tmp_path / "state/copies"))
    write(project, uv_lock="1", pyproject_toml="x")
    first = copies.keep("/a", read(mount_of(project), "uv.lock"))
    write(project, pyproject_toml="y")
    assert copies.keep("/a", read(mount_of(project), "uv.lock")) != first
    write(project, pyproject_toml="x")
    assert copies.keep("/a", read(mount_of(project), "uv.lock")) == first
    assert copies.keep("/b", read(mount_of(project), "uv.lock")) != first
    write(project, uv_lock="2")
    second = copies.keep("/a", read(mount_of(project), "uv.lock"))
    assert Path(first, "uv.lock").read_text() == "1"
    assert Path(second, "uv.lock").read_text() == "2"
    assert (tmp_path / "state/copies").stat().st_mode & 0o777 == 0o700
    copies.keep_only([f"{second}/pyproject.toml"])
    assert [str(path) for path in (tmp_path / "state/copies").iterdir()] == [second]
