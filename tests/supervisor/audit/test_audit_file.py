"""The audit's file: appended to, rotated, and what a full disk or somebody else does to it."""

from __future__ import annotations

import json
import os
import stat
import threading
from typing import TYPE_CHECKING, Any

import pytest
import trio
import trio.testing

from nsmd.audit import journal as journal_module
from nsmd.audit.journal import GATHER_S, AuditFile, Journal, line_of, open_journal, rfc3339

if TYPE_CHECKING:
    from collections.abc import Callable, Generator
    from pathlib import Path

    import pytest


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "audit.jsonl"


@pytest.fixture
def opened(path: Path) -> Generator[Callable[[], AuditFile]]:
    """Files of 100 bytes, two of which are kept beside; closed in the end."""
    files: list[AuditFile] = []

    def make() -> AuditFile:
        files.append(AuditFile(str(path), max_bytes=100, keep=2))
        return files[-1]

    yield make
    for file in files:
        file.close()


def line(letter: str, length: int = 40) -> bytes:
    return letter.encode() * (length - 1) + b"\n"


def test_the_audit_file_is_private_and_appended_to(
    path: Path, opened: Callable[[], AuditFile]
) -> None:
    path.write_bytes(line("a", 10))
    path.chmod(0o644)
    opened().append(line("b", 10))
    assert path.read_bytes() == line("a", 10) + line("b", 10)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_a_larger_one_is_set_aside_and_the_oldest_deleted(
    path: Path, opened: Callable[[], AuditFile]
) -> None:
    file = opened()
    for letter in "abcdefgh":  # two fit into each
        file.append(line(letter))
    assert path.read_bytes() == line("g") + line("h")
    assert path.with_name("audit.jsonl.1").read_bytes() == line("e") + line("f")
    assert path.with_name("audit.jsonl.2").read_bytes() == line("c") + line("d")
    assert sorted(each.name for each in path.parent.iterdir()) == [
        "audit.jsonl",
        "audit.jsonl.1",
        "audit.jsonl.2",
    ]


def test_a_line_longer_than_a_file_is_written_whole(
    path: Path, opened: Callable[[], AuditFile]
) -> None:
    file = opened()
    file.append(line("a", 500))
    file.append(line("b"))
    assert path.read_bytes() == line("b")
    assert path.with_name("audit.jsonl.1").read_bytes() == line("a", 500)


def test_supervisors_with_one_file_rotate_together(
    path: Path, opened: Callable[[], AuditFile]
) -> None:
    first, second = opened(), opened()
    for letter in "abcdef":
        first.append(line(letter))
        second.append(line(letter.upper()))
    written = b"".join(
        path.with_name(name).read_bytes()
        for name in ("audit.jsonl.2", "audit.jsonl.1", "audit.jsonl")
    )
    assert written == b"".join(line(letter) for letter in "dDeEfF")


def test_no_older_file_is_kept_where_none_is_wanted(path: Path) -> None:
    file = AuditFile(str(path), max_bytes=50, keep=0)
    file.append(line("a"))
    file.append(line("b"))
    file.close()
    assert [each.name for each in path.parent.iterdir()] == ["audit.jsonl"]
    assert path.read_bytes() == line("b")


def test_a_line_that_was_cut_does_not_cut_the_next(
    path: Path, opened: Callable[[], AuditFile]
) -> None:
    path.write_bytes(b'{"at": "2026')
    file = opened()
    file.append(line("a", 10))
    file.append(line("b", 10))
    assert path.read_bytes() == b'{"at": "2026\n' + line("a", 10) + line("b", 10)


@pytest.mark.parametrize("kind", ["link", "fifo", "directory"])
def test_a_path_that_is_no_file_is_refused(
    path: Path, opened: Callable[[], AuditFile], kind: str
) -> None:
    other = path.with_name("other")
    other.write_bytes(b"")
    match kind:
        case "link":
            path.symlink_to(other)
        case "fifo":
            os.mkfifo(path)
        case _:
            path.mkdir()
    with pytest.raises(OSError, match=r"no file of ours\. Move it out of the way"):
        opened().append(line("a"))
    assert other.read_bytes() == b""


def test_a_file_that_was_removed_is_made_again(path: Path, opened: Callable[[], AuditFile]) -> None:
    file = opened()
    file.append(line("a"))
    path.unlink()
    file.append(line("b"))
    assert path.read_bytes() == line("b")


# Lines on their way to the audit's file: never in anyone's way, counted where they are lost.


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
