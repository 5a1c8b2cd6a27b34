"""Files and directories that a person wants hidden: which ones a text stands for."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from nsmbox.model.plan import BoxError
from nsmbox.protection import hidden_paths
from nsmbox.protection.hidden_paths import HiddenPaths, look

if TYPE_CHECKING:
    from pathlib import Path

FILES = (
    *(".env", "README", "api/.env", "api/conf/key.pem", "api/conf/deep/key.pem", "key.pem"),
    *("secrets/a", "secrets/b/c", "odd\nname/.env", ".hidden/x.pem"),
)


@pytest.fixture
def project(tmp_path: Path) -> str:
    for name in FILES:
        path = tmp_path / "shop" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("x")
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib/.env").write_text("x")
    return str(tmp_path / "shop")


def find(project: str, *asked: str) -> HiddenPaths:
    return look(asked, project, shown=[project], writable=[project], home=project)


def names(project: str, *asked: str) -> list[str]:
    found = find(project, *asked)
    return [os.path.relpath(path, project) for path in (*found.files, *found.directories)]


@pytest.mark.parametrize(
    ("asked", "hidden"),
    [
        ([".env"], [".env", "api/.env", "odd\nname/.env"]),
        (["./.env"], [".env"]),
        (["api/.env"], ["api/.env"]),
        (["~/api/.env"], ["api/.env"]),
        (["*.pem"], [".hidden/x.pem", "api/conf/deep/key.pem", "api/conf/key.pem", "key.pem"]),
        (["api/**/*.pem"], ["api/conf/deep/key.pem", "api/conf/key.pem"]),
        (["api/*/*.pem"], ["api/conf/key.pem"]),
        (["api/**"], ["api/.env", "api/conf"]),
        (["secrets"], ["secrets"]),
        (["secrets/"], ["secrets"]),
        (["README/"], []),
        (["secrets", "secrets/a", "a"], ["secrets"]),
        (
            ["READM[EF]", "k?y.pem"],
            ["README", "api/conf/deep/key.pem", "api/conf/key.pem", "key.pem"],
        ),
    ],
)
def test_paths_names_and_patterns(project: str, asked: list[str], hidden: list[str]) -> None:
    assert sorted(names(project, *asked)) == hidden


def test_a_name_holds_for_all_directories(project: str) -> None:
    lib = os.path.join(os.path.dirname(project), "lib")
    found = look([".env"], project, shown=[project, lib], writable=[project], home="/")
    assert f"{lib}/.env" in found.files
    assert found.held == tuple(sorted((f"{project}/api", f"{project}/odd\nname")))
    assert look(["../lib/.env"], project, shown=[project, lib], writable=[], home="/").files == (
        f"{lib}/.env",
    )


def test_names_without_a_file_are_told(project: str) -> None:
    assert find(project, "api/no", ".no", "api/*.no").notes == (
        "Nothing is hidden by api/no: there is no such file.",
        "Nothing is hidden by api/*.no: there is no such file.",
        "Nothing is hidden by .no: there is no such file.",
    )


@pytest.mark.parametrize(
    ("asked", "why"),
    [
        ("", "is not the name"),
        (".", "is not the name"),
        ("./", "is not the name"),
        ("~", "is not the name"),
        ("a\0b", "is not the name"),
        ("../shop", "is a directory that the box is to show"),
        ("/", "is not the name"),
        ("../lib/.env", "lies in none of the directories"),
        ("/etc/passwd", "lies in none of the directories"),
        ("../*", "is a directory that the box is to show"),
    ],
)
def test_paths_that_cannot_be_hidden_are_refused(project: str, asked: str, why: str) -> None:
    with pytest.raises(BoxError) as refused:
        find(project, asked)
    assert why in refused.value.message
    assert refused.value.exit_code == 2


def test_links_hide_what_they_lead_to(project: str) -> None:
    os.symlink("secrets/a", os.path.join(project, "link.key"))
    os.symlink("/etc/passwd", os.path.join(project, "out.key"))
    os.symlink("nowhere", os.path.join(project, "broken.key"))
    assert names(project, "*.key") == ["secrets/a"]


def test_a_directory_that_cannot_be_searched_is_no_way_out(project: str) -> None:
    if os.geteuid() == 0:
        pytest.skip("not here: root reads everything")
    os.chmod(os.path.join(project, "secrets"), 0)
    try:
        with pytest.raises(BoxError, match="cannot look into it"):
            find(project, ".env")
    finally:
        os.chmod(os.path.join(project, "secrets"), 0o700)


def test_too_many_are_refused(project: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(hidden_paths.MAX_HIDDEN + 1):
        with open(os.path.join(project, "secrets", f"{number}.x"), "w"):
            pass
    for asked in ("*.x", "secrets/*.x", "**/*.x"):
        with pytest.raises(BoxError, match="no more than 1000 files and directories"):
            find(project, asked)
    assert names(project, "secrets") == ["secrets"]
    monkeypatch.setattr(hidden_paths, "MAX_ENTRIES", 100)
    with pytest.raises(BoxError, match="more than 100 files to compare"):
        find(project, "*.no")
