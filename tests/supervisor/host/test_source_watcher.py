"""A sandbox directory while things happen to it: real directories, real notices."""

from __future__ import annotations

import errno
import os
import threading
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import trio

from dummy_artifacts import artifact
from nsmd.environments.artifacts.discovery import Scan, scan_directory
from nsmd.host import source_watcher
from nsmd.host.paths import Trail, trusted_owners
from nsmd.host.source_watcher import (
    Q_OVERFLOW,
    Inotify,
    Notice,
    SourceWatcher,
    Watches,
    open_source_watcher,
)
from nsmd.model.settings import Defaults

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Generator

    import pytest

    from nsmd.host.paths import WatchedPaths

TIMEOUT_S = 120


class Kept:
    """A directory that is kept, and what was reported of it."""

    def __init__(self, watcher: SourceWatcher, directory: Path) -> None:
        self.watcher = watcher
        self.last = Scan()
        self.looks = 0
        self._reported = trio.Event()
        look = partial(scan_directory, str(directory), Defaults(), trusted_owners(), expected=True)
        self.unwatched: str | None = None
        watcher.keep(directory, str(directory), look, self._take, Scan)

    def _take(self, scan: Scan, unwatched: str | None) -> None:
        self.last, self.unwatched = scan, unwatched
        self.looks += 1
        self._reported.set()

    @property
    def names(self) -> list[str]:
        return [environment.name for environment in self.last.environments]

    @property
    def problems(self) -> list[str]:
        return [problem.why for problem in self.last.problems]

    async def until(self, right: Callable[[], bool]) -> None:
        """Wait for a report after which something holds."""
        with trio.fail_after(TIMEOUT_S):
            while not right():
                self._reported = trio.Event()
                await self._reported.wait()


@asynccontextmanager
async def keeping(directory: Path) -> AsyncGenerator[Kept]:
    async with open_source_watcher() as it:
        kept = Kept(it, directory)
        await it.first_look(directory)
        yield kept


async def test_a_link_far_away_is_exchanged(tmp_path: Path) -> None:
    """`nix build -o result` again, where the sandbox directory has a link to `result`."""
    old, new = (artifact(tmp_path / "store", f"{n}-science", name="science") for n in (1, 2))
    folder = tmp_path / "sandboxes"
    folder.mkdir()
    (tmp_path / "result").symlink_to(old)
    (folder / "science").symlink_to(tmp_path / "result")
    async with keeping(folder) as kept:
        (before,) = kept.last.environments
        (tmp_path / "next").symlink_to(new)
        (tmp_path / "next").rename(tmp_path / "result")
        await kept.until(lambda: kept.last.environments != (before,))
        (after,) = kept.last.environments
        assert after.artifact is not None
        assert after.artifact.run == os.path.realpath(new / "bin/run")


async def test_the_directory_comes_goes_and_is_exchanged(tmp_path: Path) -> None:
    folder = tmp_path / "config" / "nsm" / "sandboxes"
    async with keeping(folder) as kept:
        assert kept.problems == ["there is no such directory (yet)"]
        artifact(folder, "one")
        await kept.until(lambda: kept.names == ["one"])
        (tmp_path / "config").rename(tmp_path / "away")
        await kept.until(lambda: kept.names == [])
        # As home-manager does it: the whole directory is a link to the store.
        generations = [tmp_path / "store" / name for name in ("two", "three")]
        for generation in generations:
            artifact(generation, generation.name)
        folder.parent.mkdir(parents=True)
        folder.symlink_to(generations[0])
        await kept.until(lambda: kept.names == ["two"])
        (tmp_path / "next").symlink_to(generations[1])
        (tmp_path / "next").rename(folder)
        await kept.until(lambda: kept.names == ["three"])


async def test_a_change_between_a_look_and_its_watch_is_seen(tmp_path: Path) -> None:
    looks: list[Scan] = []

    def look() -> Scan:
        scan = scan_directory(str(tmp_path), Defaults(), trusted_owners(), expected=True)
        if not looks:
            artifact(tmp_path)
        looks.append(scan)
        return scan

    async with open_source_watcher() as it:
        reported: list[Scan] = []
        it.keep("x", "/d", look, lambda scan, _: reported.append(scan), Scan)
        await it.first_look("x")
        assert looks[0].environments == ()
        assert [environment.name for environment in reported[0].environments] == ["science"]


async def test_a_look_that_hangs_delays_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(source_watcher, "LOOK_TIMEOUT_S", 0.01)
    goes_on = threading.Event()

    def hang() -> Scan:
        goes_on.wait(TIMEOUT_S)
        return Scan()

    try:
        async with open_source_watcher() as it:
            reported = trio.Event()
            it.keep("hangs", "/net/somewhere", hang, lambda _, __: reported.set(), Scan)
            await it.first_look("hangs")
            await it.look("hangs")
            assert not reported.is_set()
            kept = Kept(it, tmp_path)
            artifact(tmp_path)
            await kept.until(lambda: kept.names == ["science"])
            goes_on.set()
            with trio.fail_after(TIMEOUT_S):
                await reported.wait()
    finally:
        goes_on.set()


@dataclass(frozen=True)
class Failed:
    """Takes the place of what was not found."""

    is_of: str
    places: WatchedPaths = field(default_factory=dict[str, frozenset[str]])


async def test_a_fault_of_ours_costs_a_source_and_no_supervisor(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def fail() -> Failed:
        raise RecursionError

    async with open_source_watcher() as it:
        reported: list[str] = []
        it.keep("x", "/d", fail, lambda scan, _: reported.append(scan.is_of), lambda: Failed("x"))
        await it.first_look("x")
        assert reported == ["x"]
        assert "RecursionError" in caplog.text
        await it.look("x")
        assert len(reported) == 2


# Notices of the kernel, which queues them at once: nothing waits here.


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


def test_after_lost_notices_everybody_looks(tmp_path: Path) -> None:
    refusing = Refusing()
    refusing.lost, refusing.number = True, errno.ENOENT
    try:
        it = Watched(Watches(refusing))
        it.want({str(tmp_path): frozenset()})
        assert it.noticed()
    finally:
        refusing.close()
