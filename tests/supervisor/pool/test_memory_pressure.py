"""Order in which sessions go when memory is short, and those that never do. Time is virtual."""

from __future__ import annotations

from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, cast

import pytest
import trio
import trio.testing

from control_bench import bench
from nsmd.model.events import SupervisorEvent
from nsmd.model.settings import MemoryPressureSettings
from nsmd.model.values import ClientIdentity, RunRequest
from nsmd.pool.memory import MOST_AT_ONCE, REASON, STEP_S, HostMemory, Pressure, is_short
from nsmd.pool.policy import MemorySeen
from virtual_time import virtual_time

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from control_bench import Bench
    from fakes import Behaviour, FakeAgent, FakeJail
    from nsmd.pool.pool import Pool

pytestmark = virtual_time

GIB = 1 << 30
PRESSED = MemorySeen(total_bytes=16 * GIB, available_bytes=GIB, pressure_percent=30.0, watched=True)
CALM = MemorySeen(total_bytes=16 * GIB, available_bytes=8 * GIB, pressure_percent=0.0, watched=True)
WORKER = ClientIdentity(name="editor", scope="here")


class SomeMemory(HostMemory):
    def __init__(self) -> None:
        super().__init__()
        self.now = CALM
        self.looks = 0

    def seen(self) -> MemorySeen:
        self.looks += 1
        return self.now


@dataclass
class SomePool:
    spares: int = 0
    looks: int = 0

    def look_soon(self) -> None:
        self.looks += 1
        self.spares = 0


@dataclass
class Stage:
    it: Bench
    pressure: Pressure
    memory: SomeMemory
    pool: SomePool
    told: list[SupervisorEvent] = field(default_factory=list[SupervisorEvent])

    async def open(self, *names: str, code: str = "x") -> None:
        for name in names:
            request = RunRequest(client=WORKER, env="python", code=code, session=name)
            execution = self.it.run_service.submit(request)
            if code != "wait":
                await execution.wait()
            await trio.sleep(1)  # so that they are idle for different times

    @property
    def alive(self) -> list[str | None]:
        return [session.name for session in self.it.run_service.live_sessions()]


@asynccontextmanager
async def stage(
    *, end_idle_sessions: bool = True, behave: Behaviour | None = None
) -> AsyncGenerator[Stage]:
    settings = MemoryPressureSettings(end_idle_sessions=end_idle_sessions, idle_seconds=600)
    async with bench(*([behave] if behave else [])) as it, trio.open_nursery() as nursery:
        memory, pool = SomeMemory(), SomePool()
        service = it.run_service
        pressure = Pressure(
            settings, memory, cast("Pool", pool), service.events, service.live_sessions
        )
        on = Stage(it, pressure, memory, pool)
        it.run_service.events.subscribe(
            lambda h: on.told.append(h) if h.kind == "memory_pressure" else None
        )
        nursery.start_soon(pressure.run)
        yield on
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize(
    ("seen", "already", "short"),
    [
        (MemorySeen(), False, False),
        (PRESSED, False, True),
        (CALM, True, False),
        (MemorySeen(total_bytes=100, available_bytes=14, pressure_percent=10.0), False, True),
        (MemorySeen(total_bytes=100, available_bytes=16, pressure_percent=90.0), False, False),
        (MemorySeen(total_bytes=100, available_bytes=5, pressure_percent=9.0), False, False),
        (MemorySeen(total_bytes=100, available_bytes=5, pressure_percent=9.0), True, True),
        (MemorySeen(total_bytes=100, available_bytes=5, pressure_percent=0.9), True, False),
        (MemorySeen(total_bytes=100, available_bytes=3), False, True),
        (MemorySeen(total_bytes=100, available_bytes=5), False, False),
    ],
)
def test_memory_is_short_by_pressure_and_by_what_is_available(
    seen: MemorySeen, already: bool, short: bool
) -> None:
    assert is_short(seen, already=already) is short


async def test_spares_go_first_then_the_longest_idle() -> None:
    async with stage() as on:
        await on.open("oldest", "older", "old")
        await trio.sleep(600)
        await on.open("young")
        on.memory.now, on.pool.spares = PRESSED, 2
        on.pressure.reclaim()
        await trio.testing.wait_all_tasks_blocked()
        assert (on.pool.looks, on.pool.spares) == (1, 0)
        assert on.alive == ["oldest", "older", "old", "young"]
        await trio.sleep(STEP_S / 2)
        on.pressure.reclaim()  # too early
        assert len(on.told) == 1
        gone: list[list[str | None]] = []
        for _ in range(4):
            await trio.sleep(STEP_S)
            gone.append(on.alive)
        assert gone == [["older", "old", "young"], ["old", "young"], ["young"], ["young"]]
        assert on.told[0].facts["spares"] == 2
        assert [each.facts["sessions"] for each in on.told] == [0, 1, 1, 1]


async def test_steps_grow_and_end_with_the_pressure() -> None:
    async with stage() as on:
        await on.open(*(f"s{number}" for number in range(50)))
        await trio.sleep(600)
        on.memory.now = PRESSED
        on.pressure.reclaim()
        left: list[int] = []
        for _ in range(6):
            await trio.testing.wait_all_tasks_blocked()
            left.append(len(on.alive))
            await trio.sleep(STEP_S)
        assert left == [49, 48, 46, 42, 34, 34 - MOST_AT_ONCE]
        on.memory.now = CALM
        await trio.sleep(10 * STEP_S)
        calm, looks = len(on.alive), on.memory.looks
        await trio.sleep(3600)
        assert len(on.alive) == calm
        assert on.memory.looks == looks, "nobody is woken while all is well"
        on.memory.now = PRESSED
        on.pressure.reclaim()
        await trio.testing.wait_all_tasks_blocked()
        assert len(on.alive) == calm - 1, "it begins with one again"


async def test_sessions_in_use_stay() -> None:
    async def busy_behind(agent: FakeAgent, jail: FakeJail) -> None:
        del jail
        await agent.be_ready()
        background = 0
        while True:
            frame = await agent.receive()
            match frame["type"]:
                case "execute" if frame["code"] == "wait":
                    pass
                case "execute":
                    background = frame["code"].count("&")
                    await agent.answer(frame)
                case "status":
                    answer: dict[str, Any] = {"running": None, "background": background}
                    await agent.send({"type": "status", **answer})
                case _:
                    pass

    async with stage(behave=busy_behind) as on:
        await on.open("background", code="server &")
        await on.open("running", "watched", "idle")
        on.it.run_service.find("watched").follow()
        await trio.sleep(600)
        await on.open("running", code="wait")
        on.memory.now = PRESSED
        on.pressure.reclaim()
        await trio.sleep(2.5 * STEP_S)
        assert on.alive == ["background", "running", "watched"]
        on.it.run_service.find("watched").unfollow()
        await trio.sleep(STEP_S)
        assert len(on.told) == 3, "only what is news"
        assert on.alive == ["background", "running"]


async def test_an_agent_that_does_not_answer_has_nothing_to_lose() -> None:
    async def mute(agent: FakeAgent, jail: FakeJail) -> None:
        del jail
        await agent.be_ready()
        await agent.answer(await agent.receive())
        while True:
            await agent.receive()

    async with stage(behave=mute) as on:
        await on.open("a")
        session = on.it.run_service.find("a")
        await trio.sleep(600)
        on.memory.now = PRESSED
        on.pressure.reclaim()
        await trio.sleep(3 * STEP_S)
        assert on.alive == []
        assert session.end_reason == REASON


async def test_ending_idle_sessions_can_be_turned_off() -> None:
    async with stage(end_idle_sessions=False) as on:
        await on.open("a")
        await trio.sleep(600)
        on.memory.now, on.pool.spares = PRESSED, 1
        on.pressure.reclaim()
        await trio.sleep(10 * STEP_S)
        assert on.alive == ["a"]
        assert on.pool.spares == 0


async def test_other_events_wake_the_look_at_memory_without_the_kernels_call() -> None:
    async with stage() as on:
        await on.open("old")
        await trio.sleep(3600)
        quiet = on.memory.looks
        await trio.sleep(3600)
        assert on.memory.looks == quiet, "an idle supervisor does not look"
        pressed = MemorySeen(total_bytes=100, available_bytes=5, pressure_percent=50.0)
        on.memory.now = pressed
        for _ in range(100):
            await on.it.run_service.submit(
                RunRequest(client=WORKER, env="python", code="x", session="young")
            ).wait()
        assert on.memory.looks <= quiet + 2, "and a busy one does so now and then"
        await trio.testing.wait_all_tasks_blocked()
        assert on.alive == ["young"]


async def test_with_the_kernel_s_call_nothing_else_makes_it_look() -> None:
    async with stage() as on:
        await on.open("old")
        await trio.sleep(3600)
        on.memory.now = PRESSED
        await on.open("young")
        assert on.alive == ["old", "young"]
        on.pressure.reclaim()
        await trio.testing.wait_all_tasks_blocked()
        assert on.alive == ["young"]
