"""Ends of sessions are told, once, whatever ended them and whichever supervisor comes next."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import trio
import trio.testing

from nsmd.restart.ended_sessions import (
    MAX_ENDED,
    SHUT_DOWN,
    UNATTENDED,
    EndedSessionFiles,
    EndedSessions,
)

if TYPE_CHECKING:
    from collections.abc import Collection


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> trio.testing.MockClock:
    """The time, for the ends and for their files; it passes only where a test says so."""
    clock = trio.testing.MockClock()
    monkeypatch.setattr(trio, "current_time", clock.current_time)
    monkeypatch.setattr(time, "monotonic", clock.current_time)
    return clock


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """Not there yet."""
    return tmp_path / "sessions"


def next_one(directory: Path, live: Collection[tuple[str, str]] = ()) -> EndedSessions:
    """Ends that the next supervisor knows."""
    files = EndedSessionFiles(str(directory))
    ended = EndedSessions(files)
    files.take_up(live, ended.restore)
    return ended


async def test_the_next_supervisor_tells_and_the_one_after_does_not(directory: Path) -> None:
    ended = next_one(directory)
    ended.add("s", "a", "idle timeout")
    ended.add("s", "b", "killed by nsm")
    ended.add("s", "a", "its jail died", lost=True)
    next_one(directory)  # nobody asked it
    assert next_one(directory).begin("s", "a") == "was lost 0 s ago (its jail died)"
    live = {("s", "a")}
    assert next_one(directory, live).begin("s", "a") is None
    assert next_one(directory, live).begin("s", "b") == "ended 0 s ago (killed by nsm)"


async def test_a_session_gone_without_an_end_was_lost(directory: Path) -> None:
    first = next_one(directory)
    assert first.begin("s", "a") is None
    assert first.begin("s", "b") is None
    second = next_one(directory, {("s", "b")})
    assert second.begin("s", "b") is None
    assert second.begin("s", "a") == f"was lost 0 s ago ({UNATTENDED})"


async def test_a_shutdown_is_told_of_all_that_began_before(
    directory: Path, clock: trio.testing.MockClock
) -> None:
    """One file tells it; to replace thousands would take seconds."""
    first = next_one(directory)
    for name in ("a", "b", "c"):
        first.begin("s", name)
    first.add("s", "c", "idle timeout")
    EndedSessionFiles(str(directory)).shut_down()
    assert len(os.listdir(directory)) == 4
    clock.jump(60)
    second = next_one(directory)
    assert second.begin("s", "a") == f"ended 60 s ago ({SHUT_DOWN})"
    assert second.begin("s", "c") == "ended 60 s ago (idle timeout)"
    third = next_one(directory)  # after a kill: only one of them began before the shutdown
    assert third.begin("s", "a") == f"was lost 0 s ago ({UNATTENDED})"
    assert third.begin("s", "b") == f"ended 60 s ago ({SHUT_DOWN})"


async def test_as_many_files_as_ends_are_remembered(directory: Path) -> None:
    ended = next_one(directory)
    for number in range(MAX_ENDED + 10):
        ended.add("s", f"n{number}", "idle timeout")
    assert len(os.listdir(directory)) == MAX_ENDED
    later = next_one(directory)
    assert later.begin("s", "n0") is None
    assert later.begin("s", f"n{MAX_ENDED + 9}")


async def test_files_are_private(directory: Path) -> None:
    next_one(directory).begin("s", "a")
    (file,) = directory.iterdir()
    assert (directory.stat().st_mode & 0o777, file.stat().st_mode & 0o777) == (0o700, 0o600)


@pytest.mark.parametrize("damage", [b"", b"x", b"nsm-record 1 00\n{}", b"\xff" * 100_000])
async def test_a_damaged_file_is_removed(directory: Path, damage: bytes) -> None:
    next_one(directory).add("s", "a", "idle timeout")
    (directory / "other").write_bytes(damage)
    (directory / "sub").mkdir()
    assert next_one(directory).begin("s", "a")
    assert not (directory / "other").exists()


async def test_a_directory_that_cannot_be_written_is_logged_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").touch()
    ended = next_one(tmp_path / "file" / "sessions")
    ended.begin("s", "a")
    ended.add("s", "a", "idle timeout")
    assert ended.begin("s", "a") == "ended 0 s ago (idle timeout)"
    assert len(caplog.records) == 1


async def test_ages_go_on(directory: Path, clock: trio.testing.MockClock) -> None:
    next_one(directory).add("s", "a", "idle timeout")
    clock.jump(300)
    later = next_one(directory)
    clock.jump(300)
    assert later.begin("s", "a") == "ended 10 min ago (idle timeout)"
