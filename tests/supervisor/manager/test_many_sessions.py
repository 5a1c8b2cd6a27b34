"""Cost of a session to the supervisor and to other sessions: nothing grows with their number.

Over fake jails; `tests/e2e/test_many_sessions.py` and `tests/soak/test_thousand.py` do it with real
ones. Time is virtual.
"""

from __future__ import annotations

import gc
import sys
import tracemalloc
from contextlib import asynccontextmanager, closing
from typing import TYPE_CHECKING, Any

import pytest
import trio
import trio.testing

from fakes import CAPABILITIES, PYTHON, FakeJail, FakeLauncher, launching, no_usage
from nsm.wire.errors import SessionLimitError
from nsmd.environments.catalog import Catalog
from nsmd.manager.run_service import RunService
from nsmd.manager.session_manager import CONCURRENT_STARTS, SessionManager
from nsmd.model.settings import PoolSettings, SessionSettings, Settings
from nsmd.model.values import ClientIdentity, RunRequest
from sandbox.framing import MessageReader, encode_frame
from virtual_time import virtual_time

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable, Callable

    from nsmd.jail import Launcher
    from nsmd.model.values import JailSpec

pytestmark = [pytest.mark.slow, virtual_time]

MANY = 200
SESSION_KIB = 13
"""Size of the supervisor's own objects; 27 KiB when a session had five tasks."""


class Bench:
    def __init__(self, run_service: RunService) -> None:
        self.run_service = run_service
        self._client = ClientIdentity(name="test", scope="test")

    async def run(self, session: str | None) -> None:
        request = RunRequest(client=self._client, env="python", code="x", session=session)
        await self.run_service.submit(request).wait()

    async def open(self, prefix: str, count: int) -> None:
        for number in range(count):
            await self.run(f"{prefix}{number}")


@asynccontextmanager
async def bench(
    launcher: Launcher | None = None, *, max_sessions: int = 10 * MANY
) -> AsyncGenerator[Bench]:
    settings = Settings(
        session=SessionSettings(max_sessions=max_sessions), pool=PoolSettings(max_spares=0)
    )
    async with launching() as echoing, trio.open_nursery() as sessions:
        async with trio.open_nursery() as upkeep:
            session_manager = SessionManager(
                settings, launcher or echoing, sessions=sessions, upkeep=upkeep
            )
            catalog = Catalog([PYTHON])
            run_service = RunService(
                settings, catalog, session_manager, home="/home/user", measure=no_usage
            )
            yield Bench(run_service)
            upkeep.cancel_scope.cancel()
        session_manager.close()


class Steps(trio.abc.Instrument):
    """Counts how often any task runs."""

    def __init__(self) -> None:
        self.count = 0

    def before_task_step(self, task: trio.lowlevel.Task) -> None:
        self.count += 1


async def test_idle_sessions_wake_nobody() -> None:
    async with bench() as it:
        await it.open("s", MANY)
        # What was to notice that an execution is overdue finds out, once, that none runs.
        await trio.sleep(60)
        steps = Steps()
        trio.lowlevel.add_instrument(steps)
        await trio.sleep(12 * 3600)
        trio.lowlevel.remove_instrument(steps)
        assert steps.count < 5
        assert len(it.run_service.live_sessions()) == MANY


class Script:
    """Launches jails whose agents are frames that are written by hand: they take no memory."""

    def __init__(self) -> None:
        self.jails: list[FakeJail] = []

    async def prepare(self, spec: JailSpec) -> None:
        del spec

    async def launch(self, spec: JailSpec, group: int | None = None) -> FakeJail:
        jail = FakeJail(len(self.jails) + 1, spec)
        ready = {"type": "ready", "protocol": 1, "python": "3", "capabilities": CAPABILITIES}
        jail.agent_end.send(encode_frame(ready))
        self.jails.append(jail)
        return jail

    def close(self) -> None:
        """Let go of the agents' ends."""
        for jail in self.jails:
            jail.agent_end.close()

    def answer(self) -> None:
        """Let the newest agent answer what it was asked."""
        end = self.jails[-1].agent_end
        reader = MessageReader()
        reader.receive_data(end.recv(65536))
        while (frame := reader.next_message()) is not None:
            if frame["type"] == "execute":
                result = {"type": "result", "id": frame["id"], "seq": 1}
                end.send(encode_frame({**result, "stdout": "", "stderr": "", "exit_code": 0}))


async def test_a_session_takes_little_memory() -> None:
    """Memory of a session that has run code, including its transcript and its kept result."""

    async def open_one(number: int) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(it.run, f"s{number}")
            await trio.testing.wait_all_tasks_blocked()
            script.answer()

    script = Script()
    with closing(script):
        async with bench(script) as it:
            for number in range(20):
                await open_one(number)
            gc.collect()
            tracemalloc.start()
            try:
                for number in range(20, 20 + MANY):
                    await open_one(number)
                gc.collect()
                taken, _ = tracemalloc.get_traced_memory()
            finally:
                tracemalloc.stop()
            assert len(it.run_service.live_sessions()) == 20 + MANY
            assert taken / MANY < SESSION_KIB * 1024


async def calls_of(function: Callable[[], Awaitable[None]]) -> int:
    """How many functions are called meanwhile, those of the fake agents included."""
    count = 0

    def note(_frame: object, event: str, _argument: Any) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    await trio.testing.wait_all_tasks_blocked()
    gc.disable()
    sys.setprofile(note)
    try:
        await function()
    finally:
        sys.setprofile(None)
        gc.enable()
    return count


@pytest.mark.parametrize("session", ["s1", "fresh", "new", None])
async def test_a_call_costs_the_same_beside_many_others(session: str | None) -> None:
    async def cost() -> int:
        name = f"fresh{len(it.run_service.live_sessions())}" if session == "fresh" else session
        return await calls_of(lambda: it.run(name))

    async with bench() as it:
        await it.open("s", 5)
        few = [await cost() for _ in range(5)]
        await it.open("t", MANY)
        many = [await cost() for _ in range(5)]
        assert min(many) < 1.1 * min(few) + 20


class Crowded:
    """Launches fake jails, slowly, and notes how many at once."""

    def __init__(self, launcher: FakeLauncher) -> None:
        self.most = 0
        self._now = 0
        self._launcher = launcher

    async def prepare(self, spec: JailSpec) -> None:
        del spec

    async def launch(self, spec: JailSpec, group: int | None = None) -> FakeJail:
        self._now += 1
        self.most = max(self.most, self._now)
        try:
            await trio.sleep(1)
            return await self._launcher.launch(spec)
        finally:
            self._now -= 1


async def test_a_thousand_at_once_beyond_the_limit() -> None:
    """All that there is room for are served, and the others are told at once what to do."""
    served: list[int] = []
    refused: list[SessionLimitError] = []

    async def ask(number: int) -> None:
        try:
            await it.run(f"s{number}")
            served.append(number)
        except SessionLimitError as error:
            assert trio.current_time() == start_s
            refused.append(error)

    async with launching() as launcher:
        crowded = Crowded(launcher)
        async with bench(crowded, max_sessions=40) as it:
            start_s = trio.current_time()
            async with trio.open_nursery() as nursery:
                for number in range(1000):
                    nursery.start_soon(ask, number)
            assert (len(served), len(refused)) == (40, 960)
            assert all("nsm kill" in error.hint for error in refused)
            assert crowded.most == CONCURRENT_STARTS
            for number in served:
                await it.run(f"s{number}")
            assert len(launcher.jails) == 40
            with pytest.raises(SessionLimitError, match="Yours that could be ended"):
                await it.run("another")
            it.run_service.find(f"s{served[0]}").end("room for another")
            await it.run("another")
