"""A directory of definitions while things happen to it: real directories, real notices."""

from __future__ import annotations

import logging
import shutil
import threading
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import pytest
import trio

from definition_files import definition, executable
from nsmd.bridge import definitions
from nsmd.bridge.definitions import (
    MAX_DEFINITIONS,
    DefinitionsIndex,
    DefinitionsScan,
    read_directory,
    render,
)
from nsmd.host import source_watcher
from nsmd.host.source_watcher import open_source_watcher

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable
    from pathlib import Path

LS = shutil.which("ls") or "/bin/ls"
TIMEOUT_S = 120


class Watched:
    """An index of definitions, and who waits for its changes."""

    def __init__(self, index: DefinitionsIndex) -> None:
        self.index = index
        self.changes = 0
        self._changed = trio.Event()
        index.subscribe(self._take)

    def _take(self) -> None:
        self.changes += 1
        self._changed.set()

    @property
    def names(self) -> list[str]:
        return list(self.index.programs)

    @property
    def reasons(self) -> list[str]:
        return [problem.reason for problem in self.index.problems]

    async def until(self, right: Callable[[], bool]) -> None:
        with trio.fail_after(TIMEOUT_S):
            while not right():
                self._changed = trio.Event()
                await self._changed.wait()


@asynccontextmanager
async def watching(directory: Path) -> AsyncGenerator[Watched]:
    async with open_source_watcher() as it:
        index = DefinitionsIndex(str(directory), it)
        await index.begin()
        yield Watched(index)
        index.end()


def test_only_definitions_of_a_directory_are_read(tmp_path: Path) -> None:
    for name in ("b", "a"):
        definition(tmp_path, name, LS)
    for name in (".hidden.md", ".#lock.md", "notes.txt", "c.md~", "d.MD", "md"):
        (tmp_path / name).write_text("no definition")
    (tmp_path / ".#a.md").symlink_to("somebody@host.1234")
    (tmp_path / "bad.md").write_text("---\nname: bad\n---\n")
    found = read_directory(str(tmp_path))
    assert list(found.programs) == ["a", "b"]
    (problem,) = found.problems
    assert render(problem) == f"{tmp_path}/bad.md:1: description is missing, expected text"


def test_a_directory_that_cannot_be_read_is_a_problem(tmp_path: Path) -> None:
    assert not read_directory(str(tmp_path / "gone")).problems
    (tmp_path / "file").touch()
    for path, why in ((tmp_path / "file", "Not a directory"), (tmp_path / "open", "is writable")):
        (tmp_path / "open").mkdir(exist_ok=True)
        (tmp_path / "open").chmod(0o777)
        (problem,) = read_directory(str(path)).problems
        assert why in render(problem)
        assert problem.source == str(path)


def test_a_number_of_definitions_is_read_at_most(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(definitions, "MAX_DEFINITIONS", 3)
    for number in range(1000):
        (tmp_path / f"p{number:04}.md").symlink_to("nowhere")
    for number in range(3):
        (tmp_path / f"p{number:04}.md").unlink()
        definition(tmp_path, f"p{number:04}", LS)
    found = read_directory(str(tmp_path))
    assert list(found.programs) == ["p0000", "p0001", "p0002"]
    (problem,) = found.problems
    assert problem.reason == "it has 1000 definitions; those after the first 3 are not read"
    assert MAX_DEFINITIONS == 256


async def test_definitions_come_change_and_go(tmp_path: Path) -> None:
    tools = tmp_path / "config/nsm/tools"
    async with watching(tools) as it:
        assert it.names == []
        definition(tools, "deploy", LS)
        await it.until(lambda: it.names == ["deploy"])
        definition(tools, "backup", LS)
        await it.until(lambda: it.names == ["backup", "deploy"])
        definition(tools, "deploy", LS, "max_args: 3")
        await it.until(lambda: it.index.programs["deploy"].max_args == 3)
        definition(tools, "deploy", LS, "max_args: three")
        await it.until(lambda: it.names == ["backup"])
        assert it.reasons == ["max_args is 'three', expected a whole number from 0 to 1000"]
        (tools / "deploy.md").unlink()
        await it.until(lambda: not it.reasons)
        (tmp_path / "config").rename(tmp_path / "away")
        await it.until(lambda: it.names == [])


async def test_files_that_definitions_name_are_watched(tmp_path: Path) -> None:
    """A command that is made, closed to others, opened to them, removed, or led elsewhere."""
    tools, command = tmp_path / "tools", tmp_path / "bin/deploy"
    definition(tools, "deploy", command, f"cwd: {tmp_path}/work")
    async with watching(tools) as it:
        assert it.reasons == [f"`command`: {command}: No such file or directory"]
        executable(command)
        await it.until(lambda: "which is not a directory" in it.reasons[0])
        (tmp_path / "work").mkdir()
        await it.until(lambda: it.names == ["deploy"])
        command.chmod(0o777)
        await it.until(lambda: it.reasons == [f"`command`: {command} is writable by everyone"])
        command.chmod(0o755)
        await it.until(lambda: it.names == ["deploy"])
        command.chmod(0o644)
        await it.until(lambda: it.names == [])
        command.unlink()
        command.symlink_to("real")
        executable(tmp_path / "bin/real")
        await it.until(lambda: it.names == ["deploy"])
        (tmp_path / "bin/real").unlink()
        await it.until(lambda: it.names == [])


async def test_a_directory_behind_a_link_is_watched(tmp_path: Path) -> None:
    """Links are exchanged the way home-manager exchanges them."""
    for generation in ("one", "two"):
        definition(tmp_path / "store" / generation, generation, LS)
    (tmp_path / "tools").symlink_to("store/one")
    async with watching(tmp_path / "tools") as it:
        assert it.names == ["one"]
        (tmp_path / "next").symlink_to("store/two")
        (tmp_path / "next").rename(tmp_path / "tools")
        await it.until(lambda: it.names == ["two"])


async def test_only_changes_are_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    definition(tmp_path, "deploy", LS)
    (tmp_path / "bad.md").write_text("bad")
    async with watching(tmp_path) as it:
        (tmp_path / "deploy.md").touch()
        await it.index.read_again()
        await it.index.read_again()
        assert it.changes == 0
        (tmp_path / "worse.md").write_text("worse")
        await it.index.read_again()
        assert it.changes == 1
    told = [record.getMessage().partition(": ")[0] for record in caplog.records]
    assert told == [f"{tmp_path}/bad.md:1", f"{tmp_path}/worse.md:1"]


async def test_a_look_that_hangs_holds_up_nobody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(source_watcher, "LOOK_TIMEOUT_S", 0.01)
    goes_on = threading.Event()

    def hang(_: str) -> DefinitionsScan:
        goes_on.wait(TIMEOUT_S)
        return DefinitionsScan()

    monkeypatch.setattr(definitions, "read_directory", hang)
    try:
        async with watching(tmp_path) as it:
            assert it.names == []
            await it.index.read_again()
    finally:
        goes_on.set()
