"""The pool's promises: ready when asked, bounded, quiet, empty when nobody asks. Virtual time."""

from __future__ import annotations

import dataclasses
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, cast

import pytest
import trio
import trio.testing

from fakes import BASH, PYTHON, FakeAgent, FakeJail, FakeLauncher, Watcher, echo, launching, spec
from nsm.wire.errors import StartFailedError
from nsmd.host.event_loop import Timers
from nsmd.model.lifecycle import SessionState
from nsmd.model.settings import PoolSettings
from nsmd.model.values import SessionLimits
from nsmd.network.gateway import Gateway
from nsmd.pool.memory import HostMemory
from nsmd.pool.policy import EXPECTED_S, MemorySeen
from nsmd.pool.pool import PLAN_FRESH_S, Pool
from nsmd.sessions.session import Session
from nsmd.sessions.transcripts import TranscriptStore
from virtual_time import virtual_time

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable

    from fakes import Behaviour
    from nsmd.manager.session_manager import SessionManager
    from nsmd.model.values import JailSpec

pytestmark = virtual_time

START_S = 0.05
"""Duration of a fake start, virtual seconds."""

FILLED_S = 2.0
"""Long after all refills of a test."""

MIB = 1 << 20


class FakeMemory(HostMemory):
    """Memory that a test decides."""

    def __init__(self) -> None:
        super().__init__()
        self.now = MemorySeen(
            total_bytes=4000 * MIB, available_bytes=3000 * MIB, pressure_percent=0.0, watched=True
        )
        self.tell: Callable[[], None] | None = None
        self.asked = 0
        self.looks = 0

    def seen(self) -> MemorySeen:
        self.looks += 1
        return self.now

    async def cost_bytes(self, pid: int) -> int | None:
        assert pid > 0
        self.asked += 1
        return MIB

    async def watch(self, tell: Callable[[], None]) -> None:
        self.tell = tell


async def slow(agent: FakeAgent, jail: FakeJail) -> None:
    await trio.sleep(START_S)
    await echo(agent, jail)


class Bench:
    def __init__(
        self, pool: Pool, started: list[Session], launcher: FakeLauncher, memory: FakeMemory
    ) -> None:
        self.pool = pool
        self.started = started
        self.launcher = launcher
        self.memory = memory

    async def serve(self, kind: JailSpec) -> Session:
        """Take one and answer at once, and let refills come."""
        session = self.pool.take_spare(kind)
        self.pool.answered(session)
        await trio.sleep(FILLED_S)
        return session

    def starting(self) -> int:
        return [session.state for session in self.started].count(SessionState.STARTING)


@asynccontextmanager
async def bench(
    behave: Behaviour = slow, *, processors: int = 2, **settings: float
) -> AsyncGenerator[Bench]:
    async with launching(behave) as launcher, trio.open_nursery() as nursery:
        started: list[Session] = []

        class Told(Watcher):
            def session_ready(self, session: Session) -> None:
                pool.ready(session)

            def session_ended(self, session: Session) -> None:
                pool.forget(session)

        def start(kind: JailSpec) -> Session:
            session = Session(
                f"{len(started):08x}",
                kind,
                launcher=launcher,
                limits=SessionLimits(),
                manager=cast("SessionManager", Told()),
                start_limiter=trio.CapacityLimiter(64),
                transcripts=TranscriptStore(),
                gateway=Gateway(),
                timers=timers,
                nursery=nursery,
            )
            started.append(session)
            nursery.start_soon(session.run)
            return session

        timers = Timers()
        nursery.start_soon(timers.run)
        memory = FakeMemory()
        pool = Pool(PoolSettings(**settings), start, nursery, memory, processors)  # type: ignore[arg-type]
        await trio.testing.wait_all_tasks_blocked()
        yield Bench(pool, started, launcher, memory)
        nursery.cancel_scope.cancel()


async def test_a_refill_lets_the_call_that_caused_it_go_first() -> None:
    async with bench() as it:
        await it.serve(spec())
        session = it.pool.take_spare(spec())
        await trio.sleep(0.05)  # its call runs
        assert it.starting() == 0
        it.pool.answered(session)
        assert it.starting() == 0  # the answer is not sent yet
        await trio.sleep(0.003)
        assert it.starting() == 1


async def test_refills_do_not_wait_when_calls_come_faster() -> None:
    """Such calls leave no calm moment to wait for."""
    async with bench() as it:
        for _ in range(3):
            await it.serve(spec())
        it.pool.answered(it.pool.take_spare(spec()))
        await trio.sleep(START_S / 10)
        session, before = it.pool.take_spare(spec()), it.starting()
        it.pool.answered(session)
        assert it.starting() == before + 2  # also for the call before, whose session goes on


async def test_the_end_of_a_session_is_the_moment_to_refill() -> None:
    async with bench() as it:
        for _ in range(3):
            await it.serve(spec())
        await trio.sleep(FILLED_S)
        full, now = it.pool.spares, trio.current_time()
        session = it.pool.take_spare(spec())
        it.pool.answered(session)
        assert it.pool.spares == full - 1
        session.end("one-shot finished")
        await session.wait_ended()
        assert it.pool.spares == full
        assert trio.current_time() == now


async def test_a_refill_does_not_wait_for_a_long_call() -> None:
    async with bench() as it:
        await it.serve(spec())
        it.pool.take_spare(spec())  # and never answers
        await trio.sleep(FILLED_S)
        assert it.pool.spares == 2


async def test_refills_come_after_callers_and_one_or_two_at_a_time() -> None:
    async with bench() as it:
        callers = [it.pool.take_spare(spec()) for _ in range(6)]
        most = 0
        while it.pool.spares < 6 or it.starting():
            await trio.sleep(0.005)
            refilling = [
                s for s in it.started if s.state is SessionState.STARTING and s not in callers
            ]
            if refilling:
                most = max(most, len(refilling))
                assert all(session.state is SessionState.IDLE for session in callers)
        assert most == 2  # both processors, while there is none ready
        (kind,) = it.pool.kinds
        assert kind.refills.usual == pytest.approx(START_S, abs=0.01)
        assert kind.cost_bytes is None  # calls have no answer: no time for that
        for caller in callers:
            it.pool.answered(caller)
        await trio.sleep(FILLED_S)
        assert kind.cost_bytes == MIB
        assert it.memory.asked == 1


async def test_a_burst_is_served_and_its_like_expected() -> None:
    async with bench(max_spares=16) as it:
        taken = [it.pool.take_spare(spec()) for _ in range(50)]
        assert len({session.id for session in taken}) == 50
        for session in taken:
            it.pool.answered(session)
        await trio.sleep(FILLED_S)
        assert it.pool.spares == 16
        assert len(it.started) == 66
        await trio.sleep(800)  # nobody calls: it is forgotten
        assert it.pool.spares == 2


async def test_all_kinds_together_are_bounded() -> None:
    async with bench(max_spares=4) as it:
        for n in range(10):
            await it.serve(spec(dataclasses.replace(PYTHON, name=f"env{n}")))
        spares = {kind.spec.environment.name: kind.spares for kind in it.pool.kinds}
        assert {name for name, count in spares.items() if count} == {"env6", "env7", "env8", "env9"}


async def test_spares_that_nobody_asks_for_end() -> None:
    async with bench(keep_seconds=60) as it:
        await it.serve(spec())
        await trio.sleep(57)
        await it.serve(spec())
        await trio.sleep(57)
        assert it.pool.spares == 2
        await trio.sleep(2)
        assert it.pool.spares == 0
        assert [session.state for session in it.started].count(SessionState.ENDED) == 2
        assert it.pool.kinds == ()


async def test_a_kind_that_is_expected_is_kept_ready_for_a_while() -> None:
    async with bench() as it:
        it.pool.expect(spec(BASH))
        await trio.sleep(FILLED_S)
        assert it.pool.take_spare(spec(BASH)).state is SessionState.IDLE
        it.pool.expect(spec(PYTHON))
        await trio.sleep(FILLED_S)
        assert [kind.spares for kind in it.pool.kinds] == [2, 1]
        await trio.sleep(EXPECTED_S)
        assert [kind.spares for kind in it.pool.kinds] == [2, 0]


async def test_a_dead_spare_is_replaced_after_a_while() -> None:
    async with bench(min_spares=1) as it:
        await it.serve(spec())
        it.started[-1].end("test")
        await trio.sleep(0.5)
        assert it.pool.spares == 0
        assert it.pool.take_spare(spec()).live
        await trio.sleep(FILLED_S)
        assert it.pool.spares == 1


async def test_a_spare_that_has_just_died_is_not_taken() -> None:
    """The call gets another one, even before the session's own task has noticed."""
    async with bench() as it:
        await it.serve(spec())
        await it.serve(spec())
        died = it.pool.kinds[0].ready[-1]
        next(jail for jail in it.launcher.jails if jail.pid == died.pid).kill()
        taken = it.pool.take_spare(spec())
        assert taken is not died
        assert taken.state is SessionState.IDLE
        await trio.sleep(FILLED_S)
        assert died.lost
        assert it.pool.spares == it.pool.kinds[0].plan.wanted


async def test_failed_starts_are_tried_less_and_less_often() -> None:
    async with bench() as it:
        it.launcher.fail = StartFailedError("bwrap: no")
        it.pool.take_spare(spec())
        await trio.sleep(0.9)
        assert len(it.started) == 3  # the caller's, and two refills
        await trio.sleep(100)
        assert len(it.started) == 9  # one after 1, 2, 4, 8, 16 and 32 seconds
        it.launcher.fail = None
        await trio.sleep(100)
        assert it.pool.spares == 2
        (kind,) = it.pool.kinds
        assert kind.failures == 0


async def test_pressure_on_memory_empties_the_pool() -> None:
    async with bench() as it:
        await it.serve(spec())
        assert it.pool.spares == 2
        it.memory.now = dataclasses.replace(it.memory.now, pressure_percent=50.0)
        assert it.memory.tell is not None
        it.memory.tell()
        await trio.sleep(1)
        assert it.pool.spares == 0
        assert it.pool.take_spare(spec()).live  # calls are served all the same
        it.memory.now = dataclasses.replace(it.memory.now, pressure_percent=0.0)
        await trio.sleep(61)
        assert it.pool.spares == 2


async def test_a_plan_holds_for_a_moment() -> None:
    """A new one for each call would cost a good part of the call."""
    async with bench(echo, max_spares=4) as it:
        for _ in range(3):
            await it.serve(spec())
        before, began_s = it.memory.looks, trio.current_time()
        for _ in range(50):
            it.pool.answered(it.pool.take_spare(spec()))
            await trio.sleep(0.003)
        took_s = trio.current_time() - began_s
        await trio.sleep(FILLED_S)
        assert it.memory.looks - before <= took_s / PLAN_FRESH_S + 2
        assert it.pool.spares == it.pool.kinds[0].plan.wanted > 1


async def test_at_rest_it_sleeps() -> None:
    """No wake-up between the last refill and the end of the kind's time."""
    async with bench() as it:
        await it.serve(spec())
        await trio.testing.wait_all_tasks_blocked()
        next_s = trio.lowlevel.current_statistics().seconds_to_next_deadline
        assert next_s == pytest.approx(900 - FILLED_S, abs=1)


async def test_spares_of_what_is_gone_or_replaced_are_dropped() -> None:
    async with bench() as it:
        taken = await it.serve(spec(PYTHON))
        await it.serve(spec(BASH))
        ready, spares = it.pool.take_spare(spec(PYTHON)), it.pool.spares
        assert spares >= 2
        it.pool.keep_only(lambda environment: environment == BASH)
        assert [kind.spec for kind in it.pool.kinds] == [spec(BASH)]
        await trio.sleep(FILLED_S)
        left = [s for s in it.started if s.live and s.spec == spec(PYTHON)]
        assert left == [taken, ready]
        it.pool.answered(ready)
        taken.end("done")
        await taken.wait_ended()
        assert all(kind.failures == 0 for kind in it.pool.kinds)


async def test_no_refill_starts_for_a_kind_that_has_gone_since_the_plan() -> None:
    async with bench() as it:
        for kind in (BASH, PYTHON):
            await it.serve(spec(kind))
        first, *others = [it.pool.take_spare(spec(kind)) for kind in (BASH, PYTHON, PYTHON)]
        it.pool.keep_only(lambda environment: environment == BASH)
        before = len(it.started)
        it.pool.answered(first)  # calls came fast, so refills begin before there is another plan
        await trio.sleep(FILLED_S)
        assert {session.spec for session in it.started[before:]} == {spec(BASH)}
        assert all(session.live for session in others)
