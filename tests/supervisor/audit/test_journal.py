"""Lines on their way to the audit's file: never in anyone's way, counted where they are lost."""

from __future__ import annotations

import json
import threading
from typing import TYPE_CHECKING, Any

import trio
import trio.testing

from nsmd.audit import journal as journal_module
from nsmd.audit.journal import GATHER_S, AuditFile, Journal, line_of, open_journal, rfc3339

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    import pytest


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_bytes().splitlines()]


def record(event: str) -> Callable[[], bytes]:
    return lambda: line_of(1234567890.25, {"event": event})


async def test_lines_are_written_together_and_in_order(
    tmp_path: Path, mock_clock: trio.testing.MockClock
) -> None:
    path = tmp_path / "a"
    async with open_journal(str(path), max_mb=1, keep=2) as journal:
        for number in range(3):
            journal.put(record(str(number)))
        await trio.testing.wait_all_tasks_blocked()
        mock_clock.jump(GATHER_S * 0.9)
        await trio.testing.wait_all_tasks_blocked()
        assert not path.exists()
        journal.put(record("3"))
        await trio.testing.wait_all_tasks_blocked()
    assert [line["event"] for line in lines(path)] == ["0", "1", "2", "3"]
    assert lines(path)[0]["at"] == "2009-02-13T23:31:30.250000Z"


async def test_while_nothing_is_to_write_nothing_wakes(
    tmp_path: Path, autojump_clock: trio.abc.Clock
) -> None:
    path = tmp_path / "a"
    async with open_journal(str(path), max_mb=1, keep=2) as journal:
        journal.put(record("one"))
        await trio.sleep(GATHER_S * 2)  # woken by that clock, or by the thread: it waits again
        await trio.testing.wait_all_tasks_blocked()
        assert trio.lowlevel.current_statistics().seconds_to_next_deadline == float("inf")


async def test_a_disk_that_takes_nothing_costs_lines_and_says_so_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "missing" / "a"
    journal = Journal(str(path), max_mb=1, keep=2, wall=lambda: 0.0)
    for _ in range(2):
        journal.put(record("lost"))
        journal.put(record("lost"))
        await journal.flush()
    assert (journal.written, journal.dropped) == (0, 4)
    assert "No such file" in journal.problem
    assert len(caplog.records) == 1
    path.parent.mkdir()
    journal.put(record("kept"))
    await journal.close()
    gap, kept = lines(path)
    assert (gap["event"], gap["lost"]) == ("gap", 4)
    assert "No such file" in gap["why"]
    assert kept["event"] == "kept"
    assert (journal.problem, journal.dropped) == ("", 4)
    assert gap["at"] == rfc3339(0.0)


async def test_a_disk_that_hangs_holds_nobody_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(journal_module, "MAX_WAITING", 5)
    began, answers = threading.Event(), threading.Event()
    path = tmp_path / "a"
    async with open_journal(str(path), max_mb=1, keep=2) as journal:
        append = AuditFile.append

        def hang(file: AuditFile, line: bytes) -> None:
            began.set()
            assert answers.wait(120)
            append(file, line)

        monkeypatch.setattr(AuditFile, "append", hang)
        journal.put(record("first"))
        async with trio.open_nursery() as nursery:
            nursery.start_soon(journal.flush)
            assert await trio.to_thread.run_sync(began.wait, 20)
            for _ in range(8):
                journal.put(record("waits"))
            assert journal.dropped == 3
            answers.set()
    events = [line["event"] for line in lines(path)]
    assert events == ["first", "gap", *["waits"] * 5]


async def test_a_disk_that_hangs_does_not_keep_the_supervisor(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, autojump_clock: trio.abc.Clock
) -> None:
    answers = threading.Event()
    hung = threading.Event()
    began = trio.current_time()
    async with open_journal(str(tmp_path / "a"), max_mb=1, keep=2) as journal:

        def hang(file: AuditFile, line: bytes) -> None:
            del file, line
            answers.wait(20)
            hung.set()

        monkeypatch.setattr(AuditFile, "append", hang)
        journal.put(record("last"))
    assert trio.current_time() - began <= journal_module.LAST_LINES_S
    answers.set()
    assert hung.wait(120)
