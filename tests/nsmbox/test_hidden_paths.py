"""Files that a person wants hidden, and sources of mounts that boxes can write to."""

from __future__ import annotations

import os
import subprocess
from typing import TYPE_CHECKING

import pytest

from nsmbox.model.plan import BoxError, Mount
from nsmbox.protection import hidden_paths, mount_sources
from nsmbox.protection.hidden_paths import HiddenPaths, look
from realjail import BWRAP, needs_bwrap

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


def bind(path: Path, *, linkless: bool = True) -> Mount:
    return Mount(kind="bind", source=str(path), target="/work", linkless=linkless)


def inode(fd: int) -> int:
    found = os.fstat(fd).st_ino
    os.close(fd)
    return found


def test_only_what_boxes_can_write_to_is_opened(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    mounts = [
        bind(tmp_path, linkless=False),
        bind(tmp_path / "file"),
        Mount(kind="dir", target="/"),
    ]
    opened = mount_sources.open_sources(mounts)
    assert list(opened) == [1]
    assert os.get_inheritable(opened[1])
    assert inode(opened[1]) == (tmp_path / "file").stat().st_ino


@pytest.mark.parametrize("at", ["outer", "outer/inner", "outer/inner/config"])
def test_a_link_that_has_come_on_the_way_is_refused(tmp_path: Path, at: str) -> None:
    source = tmp_path / "outer" / "inner" / "config"
    source.parent.mkdir(parents=True)
    source.write_text("")
    (tmp_path / at).rename(tmp_path / "aside")
    (tmp_path / at).symlink_to(tmp_path / "aside")
    assert source.exists()
    before = len(os.listdir("/proc/self/fd"))
    with pytest.raises(BoxError, match="a symbolic link has come on the way") as caught:
        mount_sources.open_sources([bind(tmp_path), bind(source)])
    assert str(source) in caught.value.message
    assert len(os.listdir("/proc/self/fd")) == before


def test_a_link_that_leads_elsewhere_by_now_is_refused(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("there")
    for says in ("there", "elsewhere"):
        mount = Mount(kind="link", target=str(tmp_path / "link"), source=says, linkless=True)
        if says == "there":
            assert mount_sources.open_sources([mount]) == {}
            continue
        with pytest.raises(BoxError, match="the link leads elsewhere"):
            mount_sources.open_sources([mount])


def test_a_missing_source_is_told(tmp_path: Path) -> None:
    with pytest.raises(BoxError, match="No such file"):
        mount_sources.open_sources([bind(tmp_path / "gone")])


@needs_bwrap
def test_a_link_put_in_place_of_a_source_is_not_shown(tmp_path: Path) -> None:
    """Bubblewrap mounts what was opened, and leaves the descriptor open for nobody."""
    assert BWRAP is not None
    if not mount_sources.is_known_to(BWRAP):
        pytest.skip("not here: this bubblewrap takes no descriptors of sources")
    work = tmp_path / "work"
    work.mkdir()
    (work / "mine").write_text("")
    (tmp_path / "secret").mkdir()
    (tmp_path / "secret" / "key").write_text("")
    ((_, fd),) = mount_sources.open_sources([bind(work)]).items()
    work.rename(tmp_path / "aside")
    work.symlink_to(tmp_path / "secret")
    done = subprocess.run(
        [
            *(BWRAP, "--unshare-all", "--ro-bind", "/", "/", "--tmpfs", "/mnt"),
            *("--proc", "/proc", "--bind-fd", str(fd), "/mnt/work"),
            *("--", "/bin/sh", "-c", "ls /mnt/work; readlink /proc/self/fd/* | grep ^/ | sort -u"),
        ],
        pass_fds=[fd],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    os.close(fd)
    assert (done.stdout.split(), done.stderr) == (["mine", "/dev/null"], "")


def test_a_program_that_hides_behind_a_script_is_given_paths(tmp_path: Path) -> None:
    (tmp_path / "bwrap").write_text("#!/bin/sh\nexec bwrap-real --ro-bind\n")
    assert not mount_sources.is_known_to(str(tmp_path / "bwrap"))
    assert not mount_sources.is_known_to(str(tmp_path / "gone"))
