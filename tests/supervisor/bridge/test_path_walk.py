"""The way to a file, while somebody exchanges what lies on it."""

from __future__ import annotations

import errno
import os
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from nsmd.bridge.path_walk import state_of, walk, way_to, why_another

if TYPE_CHECKING:
    from collections.abc import Callable


def inode_at(path: str, step: Callable[[str], None] = lambda _: None) -> int:
    fd = walk(path, lambda part, _, __: step(part))
    try:
        return os.fstat(fd).st_ino
    finally:
        os.close(fd)


def below(path: Path) -> list[str]:
    return [str(part) for part in (*reversed(path.parents), path)]


@pytest.mark.parametrize("path", ["a", "a/", "a/b", "l", "l/b", "up", "top"])
def test_a_walk_leads_where_the_kernel_goes(path: str, tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a/b").touch()
    (tmp_path / "l").symlink_to("a")
    (tmp_path / "up").symlink_to("a/../../..")
    (tmp_path / "top").symlink_to("/../..//")
    expected = (tmp_path / path).stat()
    fd = walk(str(tmp_path / path))
    assert state_of(os.fstat(fd)) == state_of(expected)
    os.close(fd)


def test_links_that_become_endless_on_the_way_end(tmp_path: Path) -> None:
    (tmp_path / "dir").mkdir()
    (tmp_path / "link").symlink_to("dir")

    def step(_: str) -> None:
        (tmp_path / "new").symlink_to("link")
        (tmp_path / "new").rename(tmp_path / "link")

    with pytest.raises(OSError, match=os.strerror(errno.ELOOP)):
        walk(str(tmp_path / "link"), lambda part, _, __: step(part))


def test_a_directory_exchanged_behind_the_walk_does_not_matter(tmp_path: Path) -> None:
    """The directory that was looked at is the one that the way goes on in."""
    (tmp_path / "good").mkdir()
    (tmp_path / "evil").mkdir()
    (tmp_path / "good/run").write_text("good")
    (tmp_path / "evil/run").write_text("evil")
    good = (tmp_path / "good/run").stat().st_ino

    def exchange(part: str) -> None:
        if part == str(tmp_path / "good"):
            (tmp_path / "good").rename(tmp_path / "old")
            (tmp_path / "evil").rename(tmp_path / "good")

    assert inode_at(str(tmp_path / "good/run"), exchange) == good
    assert (tmp_path / "good/run").read_text() == "evil"


def test_no_descriptor_is_left_when_it_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "link").symlink_to("a")

    def refuse(refused: str, part: str, *_: object) -> None:
        if part == refused:
            raise PermissionError

    before = os.listdir("/proc/self/fd")
    for part in ("/", *below(tmp_path / "link"), str(tmp_path / "a")):
        with pytest.raises(PermissionError):
            walk(str(tmp_path / "link"), partial(refuse, part))
    assert os.listdir("/proc/self/fd") == before


def touched(path: Path) -> None:
    path.write_text("evil")


def moded(path: Path) -> None:
    path.chmod(0o700)


def replaced(path: Path) -> None:
    (path.parent / "other").write_text("evil")
    (path.parent / "other").rename(path)


def linked(path: Path) -> None:
    path.rename(path.parent / "moved")
    path.symlink_to("moved")
    (path.parent / "moved").chmod(0o600)


def removed(path: Path) -> None:
    path.unlink()


def moved_away_and_back(path: Path) -> None:
    path.rename(path.parent / "away")
    (path.parent / "away").rename(path)


def link_exchanged_and_back(path: Path) -> None:
    for target in ("evil", "real"):
        (path.parent / "new").symlink_to(target)
        (path.parent / "new").rename(path.parent / "link")


CHANGED = "{path}, or a link on the way to it, was changed after it had been checked"
ANOTHER = "{path} leads to another file than the one that was checked"


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (touched, CHANGED),
        (moded, CHANGED),
        (replaced, ANOTHER),
        (linked, CHANGED),
        (moved_away_and_back, CHANGED),
        (link_exchanged_and_back, CHANGED),
        (removed, "{path} is not what was checked any more: No such file or directory"),
    ],
)
def test_a_change_on_the_way_is_noticed(
    change: Callable[[Path], None], why: str, tmp_path: Path
) -> None:
    """Also what is as before by the time somebody looks."""
    (tmp_path / "real").mkdir()
    (tmp_path / "evil").mkdir()
    (tmp_path / "link").symlink_to("real")
    path = tmp_path / "link/run"
    path.write_text("good")
    expected = way_to(str(path))
    assert len(expected) == 2 * 3
    assert expected[-3:] == state_of(path.stat())
    assert why_another(str(path), expected) is None
    next_tick(tmp_path / "clock", expected[-1])
    change(path if change is not link_exchanged_and_back else path.parent)
    assert why_another(str(path), expected) == why.format(path=path)


def next_tick(clock: Path, after_ns: int) -> None:
    """Wait until files that are changed have a later time, for kernels whose clock for that ticks
    every few milliseconds."""
    clock.touch()
    while clock.stat().st_ctime_ns <= after_ns:
        clock.touch()
