"""Audit lines: who did what, when, in which session, with what outcome."""

from __future__ import annotations

import hashlib
import json
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import pytest
import trio

from control_bench import Bench, bench
from nsm.wire.errors import NsmError
from nsmd.audit import Journal, Recorder
from nsmd.model.settings import AuditSettings
from virtual_time import virtual_time

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable
    from pathlib import Path

pytestmark = virtual_time


class Trail:
    """A bench whose events are written down."""

    def __init__(self, it: Bench, path: Path) -> None:
        self.it = it
        self.path = path
        self.journal = Journal(str(path), max_mb=1, keep=2, wall=lambda: 0.0)
        self.recorder = Recorder(self.journal, AuditSettings())
        it.run_service.events.subscribe(self.recorder)

    async def lines(self, *events: str) -> list[dict[str, Any]]:
        async def at_once(work: Callable[..., Any], *arguments: object, **_: object) -> object:
            return work(*arguments)

        with pytest.MonkeyPatch.context() as patched:  # in a thread, the clock would jump meanwhile
            patched.setattr(trio.to_thread, "run_sync", at_once)
            await self.journal.flush()
        if not self.path.exists():
            return []
        lines = [json.loads(line) for line in self.path.read_bytes().splitlines()]
        return [line for line in lines if not events or line["event"] in events]


@asynccontextmanager
async def trail(tmp_path: Path) -> AsyncGenerator[Trail]:
    async with bench() as it:
        made = Trail(it, tmp_path / "audit.jsonl")
        yield made
    await made.journal.close()


async def test_long_code_has_a_line_at_its_beginning(tmp_path: Path) -> None:
    async with trail(tmp_path) as it:
        peer = await it.it.connect()
        running = await peer.start("run", env="python", code="wait", session="a")
        await trio.testing.wait_all_tasks_blocked()
        (begun,) = await it.lines("execution_started", "execution")
        await (await it.it.connect()).call("interrupt", target="a")
        await peer.answer(running)
        begun_again, finished = await it.lines("execution_started", "execution")
    assert begun == begun_again
    assert (begun["event"], finished["event"]) == ("execution_started", "execution")
    assert begun["execution"] == finished["execution"]
    assert begun["code_sha256"] == finished["code_sha256"]
    assert finished["outcome"] == "interrupted"


@pytest.mark.parametrize("whole", [False, True])
async def test_code_is_a_hash_unless_configured(tmp_path: Path, *, whole: bool) -> None:
    code = "1 # é"
    async with trail(tmp_path) as it:
        it.recorder.configure(AuditSettings(code=whole))
        peer = await it.it.connect()
        await peer.call("run", env="python", code=code, session="a")
        (line,) = await it.lines("execution")
    assert line["code_sha256"] == hashlib.sha256(code.encode()).hexdigest()
    assert line["code_bytes"] == len(code.encode())
    assert line.get("code") == (code if whole else None)


async def test_code_that_never_ran_has_the_outcome_not_run(tmp_path: Path) -> None:
    async with trail(tmp_path) as it:
        peer = await it.it.connect()
        first = await peer.start("run", env="python", code="wait", session="a")
        second = await peer.start("run", env="python", code="2", session="a")
        await trio.testing.wait_all_tasks_blocked()
        await (await it.it.connect()).call("kill", targets=["a"])
        for id_ in (first, second):
            with pytest.raises(NsmError):
                await peer.answer(id_)
        lines = await it.lines("execution")
    assert [(line["outcome"], line["error"]) for line in lines] == [
        ("lost", "session-ended"),
        ("not-run", "session-ended"),
    ]


async def test_operations_that_change_something(tmp_path: Path) -> None:
    async with trail(tmp_path) as it:
        peer = await it.it.connect()
        await peer.call("run", env="python", code="1", session="a")
        await peer.call("status")
        await peer.call("net", target="a")
        await peer.call("net", target="a", action="off")
        with pytest.raises(NsmError):
            await peer.call("interrupt", target="nothing")
        lines = await it.lines("operation")
    assert [line["operation"] for line in lines] == ["net", "interrupt"]
    assert lines[0]["arguments"] == {"target": "a", "action": "off"}
    assert "error" not in lines[0]
    assert lines[1]["error"] == "unknown-session"


async def test_the_audit_can_be_turned_off_and_on(tmp_path: Path) -> None:
    async with trail(tmp_path) as it:
        it.recorder.configure(AuditSettings(enabled=False))
        peer = await it.it.connect()
        running = await peer.start("run", env="python", code="wait", session="a")
        await trio.testing.wait_all_tasks_blocked()
        it.recorder.configure(AuditSettings())
        await (await it.it.connect()).call("interrupt", target="a")
        await peer.answer(running)
        lines = await it.lines()
    # It began while nobody wrote: its end is told, and its hash too, from the request.
    assert [line["event"] for line in lines] == ["operation", "execution"]
    assert lines[1]["code_sha256"] == hashlib.sha256(b"wait").hexdigest()


async def test_a_session_that_was_taken_up_began_earlier(tmp_path: Path) -> None:
    async with trail(tmp_path) as it:
        peer = await it.it.connect()
        await peer.call("run", env="python", code="1", session="a")
        began = len(await it.lines())
        session = it.it.run_service.find("here/a")
        session.taken_up = 2
        events = it.it.run_service.events
        events.publish("session_claimed", session=session.id, subject=session)
        events.publish("session_taken_up", session=session.id, subject=session)
        events.publish("restarted", restarts=2, sessions=1)
        taken_up, restarted = (await it.lines())[began:]
    assert (taken_up["event"], taken_up["restarts"]) == ("session_taken_up", 2)
    assert (taken_up["session"], taken_up["name"]) == (session.id, "a")
    assert (restarted["event"], restarted["sessions"]) == ("restarted", 1)
