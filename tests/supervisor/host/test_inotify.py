"""Changes that are noticed. The kernel queues notices at once, so nothing waits here."""

from __future__ import annotations

import errno
import os
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from nsmd.host.paths import Trail, trusted_owners
from nsmd.host.source_watcher import Q_OVERFLOW, Inotify, Notice, Watches

if TYPE_CHECKING:
    from collections.abc import Generator

    from nsmd.host.paths import WatchedPaths


class Watched:
    """Somebody for whom places are watched."""

    def __init__(self, watches: Watches) -> None:
        self.watches = watches
        self.stirred = 0

    def stir(self) -> None:
        self.stirred += 1

    def want(self, places: WatchedPaths) -> bool:
        new, refusal = self.watches.want(self.stir, places)
        assert refusal is None
        return new

    def follow(self, path: Path) -> WatchedPaths:
        """Want whatever looking up a path depends on; returns that."""
        trail = Trail(trusted_owners())
        with suppress(OSError):
            trail.follow(str(path))
        while self.want(trail.places):
            pass
        return trail.places

    def noticed(self) -> bool:
        """Return whether anything has happened since the last time."""
        before = self.stirred
        self.watches.read()
        return self.stirred > before


@pytest.fixture
def inotify() -> Generator[Inotify]:
    it = Inotify()
    yield it
    it.close()


@pytest.fixture
def watched(inotify: Inotify) -> Watched:
    return Watched(Watches(inotify))


def kernels(inotify: Inotify) -> int:
    """How many directories the kernel watches."""
    lines = Path(f"/proc/self/fdinfo/{inotify.fd}").read_text().splitlines()
    return sum(line.startswith("inotify ") for line in lines)


def test_a_file_is_followed_through_everything_that_can_become_of_it(
    watched: Watched, tmp_path: Path
) -> None:
    path = tmp_path / "run"
    watched.want({str(tmp_path): frozenset({"run"})})
    path.write_text("a")
    assert watched.noticed()
    path.chmod(0o700)
    assert watched.noticed()
    with path.open("a") as file:
        assert not watched.noticed()
        file.write("b")
    assert watched.noticed()
    path.rename(tmp_path / "away")
    assert watched.noticed()
    (tmp_path / "away").rename(path)
    assert watched.noticed()
    path.unlink()
    assert watched.noticed()


def test_the_kernel_watches_no_more_than_somebody_wants(
    watched: Watched, inotify: Inotify, tmp_path: Path
) -> None:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
    a, b = str(tmp_path / "a"), str(tmp_path / "b")
    other = Watched(watched.watches)
    watched.want({a: frozenset({"x"}), b: frozenset()})
    other.want({a: frozenset({"y"})})
    assert kernels(inotify) == 2
    (tmp_path / "a" / "y").touch()
    assert not watched.noticed()
    assert other.stirred
    watched.watches.forget(watched.stir)
    assert kernels(inotify) == 1
    (tmp_path / "a" / "x").touch()
    assert not other.noticed()
    other.want({})
    assert kernels(inotify) == 0
    (tmp_path / "a").rename(tmp_path / "c")
    assert not other.noticed()


class Refusing(Inotify):
    """A kernel with no room left, or that has lost notices."""

    number = errno.ENOSPC
    lost = False

    def add(self, directory: str, mask: int) -> int:
        raise OSError(self.number, os.strerror(self.number))

    def read(self) -> list[Notice]:
        return [Notice(-1, Q_OVERFLOW, "")] if self.lost else []


@pytest.mark.parametrize(
    ("number", "why"),
    [(errno.ENOSPC, "fs.inotify.max_user_watches"), (errno.EACCES, "Permission denied")],
)
def test_a_directory_that_cannot_be_watched_is_told(number: int, why: str, tmp_path: Path) -> None:
    refusing = Refusing()
    refusing.number = number
    try:
        it = Watched(Watches(refusing))
        new, refusal = it.watches.want(it.stir, {str(tmp_path): frozenset({""})})
        assert not new
        assert why in (refusal or "")
    finally:
        refusing.close()
