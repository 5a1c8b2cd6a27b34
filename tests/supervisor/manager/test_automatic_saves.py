"""Saves that nobody asks for: when they are made, with virtual time and without sessions."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import trio
import trio.testing

from nsmd.manager import automatic_saves
from nsmd.manager.automatic_saves import IDLE_S, AutomaticSaves
from nsmd.model.events import Events
from nsmd.model.lifecycle import SessionState
from nsmd.model.settings import SessionSettings
from nsmd.sessions.execution import Execution
from nsmd.sessions.session import Session
from virtual_time import virtual_time

if TYPE_CHECKING:
    import pytest

pytestmark = virtual_time


class SavedSessions:
    """A bus of events with sessions, and the saves that were made of them."""

    def __init__(self) -> None:
        self.events = Events()
        self.keep = True
        self.sessions: dict[str, Any] = {}
        self.saved: list[tuple[str, float]] = []
        self.began_s = trio.current_time()
        self.saves = AutomaticSaves(
            self.events,
            lambda: SessionSettings(keep=self.keep, saves_mb=7),
            self.sessions.get,
            self.sessions.values,
            self._write,
        )

    async def _write(self, session: Session, saves_mb: int) -> None:
        assert saves_mb == 7
        self.saved.append((session.id, trio.current_time() - self.began_s))
        await trio.lowlevel.checkpoint()

    def add(self, name: str | None, idle_timeout_s: float = 3600.0) -> None:
        """Add an idle session; its id is its name."""
        session = cast("Any", Session.__new__(StandIn))
        session.id, session.tenancy, session.name = name or "one-shot", None, name
        session.state = SessionState.IDLE
        session.tenancy = SimpleNamespace(name=name, idle_timeout_s=idle_timeout_s)
        self.sessions[session.id] = session

    def ran(self, session_id: str, code: str = "x = 1") -> None:
        """Tell that code of a session has ended."""
        execution = cast("Any", Execution.__new__(StandInExecution))
        execution.request = SimpleNamespace(code=code)
        execution.session = self.sessions[session_id]
        self.events.publish("execution_finished", session=session_id, subject=execution)


class StandIn(Session):
    """A session without a jail."""

    tenancy: Any
    state: Any
    runs_programs: Any = False
    runners: Any = None


class StandInExecution(Execution):
    """An execution that has ended."""


async def test_an_idle_session_is_saved_once_for_what_it_ran() -> None:
    """Neither one that nobody uses, nor nsm's own code for a save, is a reason for the next."""
    it = SavedSessions()
    it.add("work")
    it.add("short", idle_timeout_s=20)
    it.add(None)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(it.saves.run)
        await trio.sleep(1000)  # those that are there at the start
        assert it.saved == [("short", 10), ("work", IDLE_S)]
        it.saved.clear()
        for _ in range(3):
            it.ran("work", "# nsm is a word of mine, too\n...")
            await trio.sleep(50)
        it.ran("one-shot")
        it.ran("short", "# nsm save\n...")
        await trio.sleep(1000)
        assert it.saved == [("work", 1000 + 100 + IDLE_S)]
        nursery.cancel_scope.cancel()


async def test_running_sessions_wait_and_gone_ones_are_forgotten() -> None:
    it = SavedSessions()
    it.add("busy")
    it.add("gone")
    it.add("map")
    async with trio.open_nursery() as nursery:
        nursery.start_soon(it.saves.run)
        await trio.testing.wait_all_tasks_blocked()
        it.sessions["busy"].state = SessionState.RUNNING
        it.sessions["map"].runs_programs = True
        del it.sessions["gone"]
        await trio.sleep(1000)
        assert it.saved == []
        it.sessions["map"].runs_programs = False
        it.events.publish("fresh_finished", session="map")
        await trio.sleep(1000)
        assert it.saved == [("map", 1000 + IDLE_S)]
        nursery.cancel_scope.cancel()


async def test_a_shutdown_saves_what_has_changed() -> None:
    it = SavedSessions()
    it.add("changed")
    it.add("same")
    it.ran("changed")
    await it.saves.save_all()
    await it.saves.save_all()
    assert [name for name, _ in it.saved] == ["changed"]


async def test_a_shutdown_ends_programs_before_it_saves() -> None:
    it = SavedSessions()
    it.add("map")
    it.ran("map")
    session = it.sessions["map"]
    session.runs_programs = True

    async def end_programs() -> None:
        assert it.saved == []
        await trio.sleep(5)
        session.runs_programs = False

    session.runners = SimpleNamespace(end_programs=end_programs)
    await it.saves.save_all()
    assert it.saved == [("map", 5)]


async def test_a_shutdown_does_not_wait_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    it = SavedSessions()
    it.add("changed")

    async def write(_session: Session, _saves_mb: int) -> None:
        await trio.sleep_forever()

    monkeypatch.setattr(it.saves, "_write", write)
    it.ran("changed")
    await it.saves.save_all()
    assert trio.current_time() - it.began_s == automatic_saves.SHUTDOWN_S


async def test_no_session_is_saved_unless_configured() -> None:
    it = SavedSessions()
    it.keep = False
    it.add("work")
    it.ran("work")
    await it.saves.save_all()
    assert it.saved == []
