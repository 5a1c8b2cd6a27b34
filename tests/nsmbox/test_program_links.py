"""Links to the system's programs: which there are, when they are made, when they are removed."""

from __future__ import annotations

import os
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from nsmbox.host import program_links
from nsmbox.model.plan import BoxError

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[str, str]:
    """Two directories of programs, and a cache of our own."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    first, second = tmp_path / "local", tmp_path / "bin"
    for directory in (first, second):
        directory.mkdir()
    (first / "git").touch()
    for name in ("git", "bash", "ssh", "ssh-add", "gpgv", "sudo", "age", "agetty", "sum"):
        (second / name).touch()
    (second / "slogin").symlink_to("ssh")
    (second / "remote").symlink_to("ssh")
    (second / "editor").symlink_to("/nowhere/editor")
    return str(first), str(second)


def made(places: tuple[str, ...]) -> dict[str, str]:
    these = program_links.look(places)
    program_links.make(these)
    return {name: os.readlink(os.path.join(these.path, name)) for name in os.listdir(these.path)}


def test_each_program_but_those_that_no_box_runs(places: tuple[str, str]) -> None:
    first, second = places
    assert made(places) == {
        "git": f"{first}/git",
        **{name: f"{second}/{name}" for name in ("bash", "agetty", "sum", "editor")},
    }


def test_links_are_kept_until_a_directory_changes(places: tuple[str, str]) -> None:
    these = program_links.look(places)
    program_links.make(these)
    mark = os.stat(these.path).st_ino
    program_links.make(program_links.look(places))
    assert os.stat(these.path).st_ino == mark
    assert program_links.look(places[::-1]).path != these.path
    with open(f"{places[1]}/new", "w", encoding="utf-8"):
        pass
    assert "new" in made(places)
    assert program_links.look(places).path != these.path


def test_those_of_long_ago_are_removed_when_others_are_made(places: tuple[str, str]) -> None:
    old, used = program_links.look(places), program_links.look(places[:1])
    program_links.make(old)
    program_links.make(used)
    parent = os.path.dirname(old.path)
    killed = os.path.join(parent, ".begun-1-2")
    os.mkdir(killed)
    long_ago = time.time() - program_links.UNUSED_S - 60
    for path in (old.path, used.path, killed):
        os.utime(path, (long_ago, long_ago))
    program_links.make(used)  # by which it is not unused any more
    new = program_links.look(places[1:])
    program_links.make(new)
    assert sorted(os.listdir(parent)) == sorted(map(os.path.basename, (used.path, new.path)))


def test_many_at_once_make_one(places: tuple[str, str]) -> None:
    these = program_links.look(places)
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(program_links.make, [these] * 16))
    assert os.listdir(os.path.dirname(these.path)) == [os.path.basename(these.path)]
    assert os.readlink(f"{these.path}/bash") == f"{places[1]}/bash"


def test_a_directory_that_another_box_has_renamed_is_passed_over(
    places: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    listdir = os.listdir

    def listed(path: str) -> list[str]:
        return [*listdir(path), ".begun-by-another"]

    monkeypatch.setattr(os, "listdir", listed)
    program_links.make(program_links.look(places))


def test_a_cache_that_cannot_be_written(places: tuple[str, str], tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    these = replace(program_links.look(places), path=str(tmp_path / "file" / "box-tools" / "x"))
    with pytest.raises(BoxError, match="cannot be kept") as caught:
        program_links.make(these)
    assert "XDG_CACHE_HOME" in caught.value.hint
    assert "NSM_SOCKET" not in caught.value.message


def test_nothing_is_left_of_what_could_not_be_made(
    places: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    these = program_links.look(places)

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "symlink", full)
    with pytest.raises(BoxError, match="No space left"):
        program_links.make(these)
    assert os.listdir(os.path.dirname(these.path)) == []


def test_a_directory_that_is_gone() -> None:
    with pytest.raises(BoxError, match="cannot be looked at"):
        program_links.look(("/nowhere",))
