"""A sandbox directory while things happen to it: real directories, real notices."""

from __future__ import annotations

import os
import threading
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import trio

from dummy_artifacts import artifact
from nsmd.environments.artifacts.discovery import Scan, scan_directory
from nsmd.host import source_watcher
from nsmd.host.paths import trusted_owners
from nsmd.host.source_watcher import SourceWatcher, open_source_watcher
from nsmd.model.settings import Defaults

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable

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
