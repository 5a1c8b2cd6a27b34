"""Ledger of requests for programs: on disk before anything starts, whatever the disk does."""

from __future__ import annotations

import errno
import json
import os
import stat
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import trio
import trio.testing

import bridge_writer
from nsm.wire.errors import AuditFailedError
from nsmd.audit import journal as journal_module
from nsmd.bridge import ledger as ledger_module
from nsmd.bridge.ledger import ended, find_fate, newest_first, not_started, open_ledger
from nsmd.bridge.programs import Caller, ProgramEnd, RecordedCall

if TYPE_CHECKING:
    from collections.abc import Callable


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "audit.log"


def asked(call_id: str = "a", *arguments: str, scope: str = "box-1") -> RecordedCall:
    caller = Caller(client="claude-code", scope=scope, way="mcp", peer=(77, 1000))
    return RecordedCall(id=call_id, caller=caller, program="deploy", arguments=arguments)


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_bytes().splitlines()]


def story(path: Path) -> list[tuple[str, str, str | None]]:
    """Event, id and why a program was stopped, of each line that is one."""
    found: list[tuple[str, str, str | None]] = []
    for each in newest_first(str(path)):
        read = [(f["event"], f["id"], f.get("why_stopped")) for f in ledger_module.lines(each)]
        found = read + found
    return found


def beside(path: Path) -> list[str]:
    return sorted(each.name for each in path.parent.iterdir())


async def test_a_call_has_a_start_and_an_end(path: Path) -> None:
    async with open_ledger(str(path), max_mb=1) as ledger:
        call = asked("x1", "-v", 'é"; \udc80')
        assert await ledger.fate("x1", "box-1") == "never"
        await ledger.begin(call)
        (start,) = lines(path)  # before the program is started
        assert await ledger.fate("x1", "box-1") == "under-way"
        await ledger.end(call, ended(ProgramEnd(exit_code=3, duration_s=1.25, left=2)))
        assert await ledger.fate("x1", "box-1") == "ended"
    _, end = lines(path)
    supervisor = start["supervisor"]
    at, ended_at = start.pop("at"), end.pop("at")
    assert at <= ended_at
    assert start == {
        "event": "start",
        "id": "x1",
        "client": "claude-code",
        "scope": "box-1",
        "program": "deploy",
        "way": "mcp",
        "pid": 77,
        "uid": 1000,
        "arguments": ["-v", 'é"; \udc80'],
        "decision": "allowed",
        "supervisor": supervisor,
    }
    assert end == {
        "event": "end",
        "id": "x1",
        "client": "claude-code",
        "scope": "box-1",
        "program": "deploy",
        "supervisor": supervisor,
        "exit_code": 3,
        "signal": None,
        "why_stopped": None,
        "duration_s": 1.25,
        "left": 2,
    }
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert beside(path) == ["audit.log"]


async def test_a_refused_call_is_one_short_line(path: Path) -> None:
    async with open_ledger(str(path), max_mb=1) as ledger:
        await ledger.refuse(asked("r", ";"), "Invalid character in argument")
        await ledger.refuse(asked("s", *["x" * 3000] * 5000), "too many")
        await ledger.refuse(asked("t", *["x"] * 5000), "too many")
        assert await ledger.fate("r", "box-1") == "never"
    short, long, many = lines(path)
    assert (short["arguments"], short["decision"]) == ([";"], "refused")
    assert short["reason"] == "Invalid character in argument"
    assert "arguments_in_all" not in short
    assert [len(each) for each in long["arguments"]] == [3000, 1096]
    assert (long["arguments_in_all"], long["argument_chars_in_all"]) == (5000, 15_000_000)
    assert len(many["arguments"]) == 100
    assert len(path.read_bytes()) < 10_000


async def test_a_start_is_on_disk_before_the_program_starts(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The line, and for a new file its name, too."""
    synced: list[str] = []
    fdatasync, fsync = os.fdatasync, os.fsync

    def note(descriptor: int, sync: Any) -> None:
        synced.append(os.readlink(f"/proc/self/fd/{descriptor}"))
        sync(descriptor)

    def note_data(descriptor: int) -> None:
        note(descriptor, fdatasync)

    def note_all(descriptor: int) -> None:
        note(descriptor, fsync)

    monkeypatch.setattr(os, "fdatasync", note_data)
    monkeypatch.setattr(os, "fsync", note_all)
    async with open_ledger(str(path), max_mb=1) as ledger:
        await ledger.begin(asked("a"))
        assert synced.index(str(path)) < len(synced) - 1 - synced[::-1].index(str(path.parent))
        synced.clear()
        await ledger.begin(asked("b"))
        assert synced == [str(path)]
        await ledger.end(asked("a"), ended(ProgramEnd(exit_code=0)))
        await ledger.end(asked("b"), ended(ProgramEnd(exit_code=0)))


# What a disk does.


@pytest.mark.parametrize("kind", ["no-directory", "link", "fifo", "directory", "full"])
async def test_a_ledger_that_cannot_be_written_refuses_calls(path: Path, kind: str) -> None:
    other = path.with_name("other")
    match kind:
        case "no-directory":
            path = path.parent / "missing" / "audit.log"
        case "link":
            other.touch()
            path.symlink_to(other)
        case "fifo":
            os.mkfifo(path)
        case "directory":
            path.mkdir()
        case _:
            path.symlink_to("/dev/full")
    async with open_ledger(str(path), max_mb=1) as ledger:
        with pytest.raises(AuditFailedError, match="nothing was started"):
            await ledger.begin(asked())
        with pytest.raises(AuditFailedError, match=r"refused anyway: no such thing"):
            await ledger.refuse(asked(), "no such thing")
        assert ledger.problem


class FullDisk:
    """Writes that fail after so many bytes, as those of a full disk do."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.room: int | None = None
        self._write = os.write
        monkeypatch.setattr(os, "write", self.write)

    def write(self, descriptor: int, data: bytes) -> int:
        is_audit = os.readlink(f"/proc/self/fd/{descriptor}").endswith("audit.log")
        if self.room is None or not is_audit:
            return self._write(descriptor, data)
        if self.room == 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        written = self._write(descriptor, data[: self.room])
        self.room -= written
        return written


LENGTH = len(
    b'{"at":"2026-11-22T00:00:00.000000Z","event":"start","id":"b","client":"claude-code",'
    b'"scope":"box-1","program":"deploy","way":"mcp","pid":77,"uid":1000,"arguments":[],'
    b'"decision":"allowed","supervisor":"0123456789ab"}\n'
)


@pytest.mark.parametrize("room", [0, 1, 2, LENGTH // 2, LENGTH - 2, LENGTH - 1])
async def test_a_start_that_was_cut_anywhere_did_not_happen(
    path: Path, monkeypatch: pytest.MonkeyPatch, room: int
) -> None:
    """Even where but the newline is missing."""
    full = FullDisk(monkeypatch)
    async with open_ledger(str(path), max_mb=1) as ledger:
        call = asked("a")
        await ledger.begin(call)
        full.room = room
        with pytest.raises(AuditFailedError, match="No space left"):
            await ledger.begin(asked("b"))
        await ledger.end(call, ended(ProgramEnd(exit_code=0)))
        assert story(path) == [("start", "a", None)]
        full.room = None
        await ledger.begin(asked("c"))  # and with it what could not be written before
        assert ledger.problem == ""
        await ledger.end(asked("c"), ended(ProgramEnd(exit_code=0)))
        assert await ledger.fate("b", "box-1") == "never"
    assert [(event, call_id) for event, call_id, _ in story(path)] == [
        ("start", "a"),
        ("end", "a"),
        ("start", "c"),
        ("end", "c"),
    ]
    assert beside(path) == ["audit.log"]


async def test_an_end_that_found_no_room_is_written_later(
    path: Path, disk: Disk, monkeypatch: pytest.MonkeyPatch, autojump_clock: trio.abc.Clock
) -> None:
    full = FullDisk(monkeypatch)
    async with open_ledger(str(path), max_mb=1) as ledger:
        await ledger.begin(asked())
        full.room = 5
        await ledger.end(
            asked(), ended(ProgramEnd(exit_code=0))
        )  # does not raise: the program has run
        assert "No space left" in ledger.problem
        await trio.sleep(journal_module.RETRY_S * 10)
        assert [event for event, *_ in story(path)] == ["start"]
        full.room = None
        await trio.sleep(journal_module.MAX_RETRY_S)
        assert ledger.problem == ""
        assert [event for event, *_ in story(path)] == ["start", "end"]


async def test_a_start_that_is_perhaps_lost_is_none(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fdatasync, broken = os.fdatasync, [True]

    def fail(descriptor: int) -> None:
        if broken[0]:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        fdatasync(descriptor)

    monkeypatch.setattr(os, "fdatasync", fail)
    async with open_ledger(str(path), max_mb=1) as ledger:
        with pytest.raises(AuditFailedError, match="Input/output error"):
            await ledger.begin(asked("a"))
        broken[0] = False
        await ledger.begin(asked("b"))
        await ledger.end(asked("b"), ended(ProgramEnd(exit_code=0)))
    assert sorted(story(path)) == [
        ("end", "a", "not-started"),
        ("end", "b", None),
        ("start", "a", None),
        ("start", "b", None),
    ]
    assert beside(path) == ["audit.log"]


class Disk:
    """Threads that write, as tasks: they begin when the disk answers."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.answers = trio.Event()
        self.answers.set()
        monkeypatch.setattr(trio.to_thread, "run_sync", self._run)

    async def _run(self, work: Callable[..., Any], *arguments: object, **options: object) -> object:
        assert options["abandon_on_cancel"]
        await self.answers.wait()
        return work(*arguments)

    def hang(self) -> None:
        self.answers = trio.Event()


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Disk:
    return Disk(monkeypatch)


async def test_a_disk_that_hangs_refuses_calls_and_says_so(
    path: Path, disk: Disk, autojump_clock: trio.abc.Clock
) -> None:
    async with open_ledger(str(path), max_mb=1) as ledger:
        disk.hang()
        began_s = trio.current_time()
        async with trio.open_nursery() as nursery:

            async def begin(call_id: str) -> None:
                with pytest.raises(AuditFailedError, match="does not answer"):
                    await ledger.begin(asked(call_id))

            nursery.start_soon(begin, "a")
            nursery.start_soon(begin, "b")
        assert trio.current_time() == pytest.approx(began_s + journal_module.WRITE_S)
        with pytest.raises(AuditFailedError, match="too long"):
            await ledger.fate("a", "box-1")
        disk.answers.set()
        await ledger.refuse(asked("r"), "reason")  # what hung is written by then
    assert sorted(story(path)) == [  # both were in the disk's hands
        ("end", "a", "not-started"),
        ("end", "b", "not-started"),
        ("refused", "r", None),
        ("start", "a", None),
        ("start", "b", None),
    ]


async def test_a_call_that_is_taken_back_meanwhile_was_not_started(path: Path, disk: Disk) -> None:
    async with open_ledger(str(path), max_mb=1) as ledger:
        disk.hang()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(ledger.begin, asked("a"))
            await trio.testing.wait_all_tasks_blocked()
            nursery.start_soon(ledger.begin, asked("b"))
            await trio.testing.wait_all_tasks_blocked()
            nursery.cancel_scope.cancel()
        disk.answers.set()
        await ledger.refuse(asked("r"), "reason")
    assert story(path) == [
        ("start", "a", None),
        ("refused", "r", None),
        ("end", "a", "not-started"),
    ]
    assert beside(path) == ["audit.log"]


# Size.


async def test_too_many_that_wait_are_refused(
    path: Path, disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(journal_module, "MAX_ASKING", 3)
    async with open_ledger(str(path), max_mb=1) as ledger, trio.open_nursery() as nursery:
        disk.hang()
        nursery.start_soon(ledger.begin, asked("first"))
        await trio.testing.wait_all_tasks_blocked()
        for number in range(3):
            nursery.start_soon(ledger.begin, asked(str(number)))
        await trio.testing.wait_all_tasks_blocked()
        with pytest.raises(AuditFailedError, match="too many"):
            await ledger.begin(asked("one more"))
        nursery.cancel_scope.cancel()
        disk.answers.set()


async def test_a_large_one_is_set_aside_and_nothing_is_deleted(path: Path) -> None:
    path.with_name("audit.log.7").write_bytes(b"older\n")
    path.with_name("99").write_bytes(b"")
    async with open_ledger(str(path), max_mb=1) as ledger:
        for number in range(8):
            call = asked(str(number), "x" * 600_000)
            await ledger.begin(call)
            await ledger.end(call, ended(ProgramEnd(exit_code=0)))
        assert await ledger.fate("0", "box-1") == "ended"
    aside = sorted(int(each[len("audit.log.") :]) for each in beside(path) if "log." in each)
    assert aside == list(range(7, 15))
    assert path.with_name("audit.log.7").read_bytes() == b"older\n"
    assert [call_id for event, call_id, _ in story(path) if event == "start"] == list("01234567")
    assert [call_id for event, call_id, _ in story(path) if event == "end"] == list("01234567")


async def test_starts_of_one_scope_that_come_too_fast_wait_or_are_counted(
    path: Path, disk: Disk, autojump_clock: trio.abc.Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ledger_module, "BURST_BYTES", 20_000)
    async with open_ledger(str(path), max_mb=1) as ledger:
        began_s = trio.current_time()
        for number in range(100):  # each waits for the one before
            await ledger.begin(asked(str(number), "x" * 4000))
        took_s = trio.current_time() - began_s
        assert took_s >= (path.stat().st_size - 20_000) / ledger_module.BYTES_PER_S > 3
        began_s = trio.current_time()
        with pytest.raises(AuditFailedError, match="faster"):
            await ledger.begin(asked("y", "x" * 200_000))
        assert trio.current_time() == began_s
        # What is refused does not wait for that.
        await ledger.refuse(asked("z"), "no")
        assert trio.current_time() == began_s
        await ledger.begin(asked("other", scope="box-2"))
        assert trio.current_time() == began_s, "others do not wait"
    assert [line["calls"] for line in lines(path) if "calls" in line] == [1]


async def test_a_flood_of_refused_calls_waits_and_adds_little(
    path: Path, disk: Disk, autojump_clock: trio.abc.Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ledger_module, "REFUSED_BURST_BYTES", 20_000)
    at_once, calls = 32, 160
    counted = 0
    async with open_ledger(str(path), max_mb=1) as ledger:

        async def flood(client: int) -> None:
            for number in range(calls // at_once):  # each waits for the one before
                await ledger.refuse(asked(f"{client}-{number}", "x" * 150), "no")

        began_s = trio.current_time()
        async with trio.open_nursery() as nursery:
            for client in range(at_once):
                nursery.start_soon(flood, client)
            await trio.sleep(10)
            before_s = trio.current_time()
            await ledger.refuse(asked("other", scope="box-2"), "no")
            await ledger.begin(asked("starts"))
            assert trio.current_time() == before_s, "nobody else waits, nor what is started"
        took_s = trio.current_time() - began_s
        assert took_s >= (path.stat().st_size - 21_000) / ledger_module.REFUSED_BYTES_PER_S > 15
        written = lines(path)
        assert len(written) == calls + 2, "each has its line"

        # Long ones are cut further, lest they wait for each other for ever.
        await ledger.refuse(asked("long", "\U0001f600" * 5000), "no")
        assert lines(path)[-1]["arguments"] == ["\U0001f600" * 200]
        assert lines(path)[-1]["argument_chars_in_all"] == 5000

        # More than a client can have under way.
        async def too_many() -> None:
            nonlocal counted
            try:
                await ledger.refuse(asked("m", "x" * 150), "no")
            except AuditFailedError:
                counted += 1

        async with trio.open_nursery() as nursery:
            for _ in range(300):
                nursery.start_soon(too_many)
        assert counted > 100
        await ledger.refuse(asked("z"), "no")
    written = lines(path)
    assert sum(line["calls"] for line in written if "calls" in line) == counted
    assert {line["scope"] for line in written if "calls" in line} == {"box-1"}
    times = [line["at"] for line in written]
    assert times == sorted(times)


async def test_ids_of_others_are_nothing_to_a_client(path: Path) -> None:
    async with open_ledger(str(path), max_mb=1) as ledger:
        mine, other = asked("a"), asked("a", scope="box-2")
        await ledger.begin(mine)
        assert await ledger.fate("a", "box-2") == "never"
        await ledger.begin(other)
        await ledger.end(mine, ended(ProgramEnd(exit_code=0)))
        assert await ledger.fate("a", "box-2") == "under-way"
        await ledger.end(other, not_started("changed"))
        assert await ledger.fate("a", "box-2") == "ended"


# After a killed supervisor.


def test_the_fate_of_a_call_is_known_wherever_its_supervisor_was_killed(tmp_path: Path) -> None:
    """Killed at each point of two calls, one after the other: at each call of the system
    that changes a file, before it and after it."""
    program = Path(bridge_writer.__file__)
    subprocess.run([sys.executable, program, tmp_path], check=True, timeout=60)
    paths = sorted((each / "audit.log" for each in tmp_path.iterdir()), key=number_of)
    finished = paths.pop()
    assert [event for event, *_ in story(finished)] == ["start", "refused", "end"]
    assert beside(finished) == ["audit.log", "started"]
    assert len(paths) > 12
    fates: list[str] = []
    for path in paths:
        before = story(path)
        fate = find_fate(str(path), "a", "test")
        if path.with_name("started").exists():
            assert before[0] == ("start", "a", None), "on disk before it is started"
            assert fate != "never"
        ended_too = ("end", "a", None) in before
        assert fate == ("ended" if ended_too else "under-way" if before else "never")
        fates.append(fate)
    assert set(fates) == {"never", "under-way", "ended"}, "there were different points"


def number_of(path: Path) -> int:
    return int(path.parent.name)
