"""The pool's promises: ready when asked, bounded, empty when nobody asks."""

from __future__ import annotations

import dataclasses
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import trio
import trio.testing

from fakes import BASH, PYTHON, launching, spec
from nsmd.lifecycle import State
from nsmd.pool import Pool
from nsmd.session import Session
from nsmd.settings import PoolSettings
from nsmd.timer import Timers
from nsmd.transcripts import TranscriptStore
from nsmd.values import SessionLimits

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from nsmd.values import JailSpec


class Bench:
    def __init__(self, pool: Pool, started: list[Session]) -> None:
        self.pool = pool
        self.started = started


@asynccontextmanager
async def bench(settings: PoolSettings) -> AsyncGenerator[Bench]:
    async with launching() as launcher, trio.open_nursery() as nursery:
        started: list[Session] = []

        class Watcher:
            def session_ended(self, session: Session) -> None:
                pool.forget(session)

        def start(kind: JailSpec) -> Session:
            session = Session(
                f"{len(started):08x}",
                kind,
                launcher=launcher,
                limits=SessionLimits(),
                watcher=Watcher(),
                start_limiter=trio.CapacityLimiter(4),
                transcripts=TranscriptStore(),
                timers=timers,
                nursery=nursery,
            )
            started.append(session)
            nursery.start_soon(session.run)
            return session

        timers = Timers()
        nursery.start_soon(timers.run)
        pool = Pool(settings, start, nursery)
        yield Bench(pool, started)
        nursery.cancel_scope.cancel()


async def test_the_second_taker_finds_a_session_ready(autojump_clock: trio.abc.Clock) -> None:
    async with bench(PoolSettings(spares=2)) as it:
        first = it.pool.take(spec())
        assert first.state is State.STARTING
        await trio.testing.wait_all_tasks_blocked()
        assert it.pool.spares == 2
        second = it.pool.take(spec())
        assert second is not first
        assert second.state is State.IDLE


async def test_kinds_are_kept_apart(autojump_clock: trio.abc.Clock) -> None:
    async with bench(PoolSettings(spares=1)) as it:
        it.pool.take(spec(PYTHON))
        await trio.testing.wait_all_tasks_blocked()
        assert it.pool.take(spec(BASH)).spec == spec(BASH)


async def test_a_burst_is_served_and_the_pool_stays_small(autojump_clock: trio.abc.Clock) -> None:
    async with bench(PoolSettings(spares=2)) as it:
        taken = [it.pool.take(spec()) for _ in range(50)]
        assert len({session.id for session in taken}) == 50
        await trio.testing.wait_all_tasks_blocked()
        assert it.pool.spares == 2
        assert len(it.started) == 52


async def test_all_kinds_together_are_bounded(autojump_clock: trio.abc.Clock) -> None:
    async with bench(PoolSettings(spares=2, max_spares=4)) as it:
        for n in range(10):
            it.pool.take(spec(dataclasses.replace(PYTHON, name=f"env{n}")))
            await trio.sleep(1)
        assert it.pool.spares == 4


async def test_what_nobody_asks_for_is_given_up(autojump_clock: trio.abc.Clock) -> None:
    async with bench(PoolSettings(spares=2, keep_seconds=60)) as it:
        it.pool.take(spec())
        await trio.sleep(59)
        it.pool.take(spec())
        await trio.sleep(59)
        assert it.pool.spares == 2
        await trio.sleep(2)
        assert it.pool.spares == 0
        assert [session.state for session in it.started].count(State.ENDED) == 2


async def test_no_spares_at_all(autojump_clock: trio.abc.Clock) -> None:
    async with bench(PoolSettings(spares=0)) as it:
        it.pool.take(spec())
        await trio.testing.wait_all_tasks_blocked()
        assert it.pool.spares == 0


async def test_a_dead_spare_is_not_handed_out(autojump_clock: trio.abc.Clock) -> None:
    async with bench(PoolSettings(spares=1)) as it:
        it.pool.take(spec())
        await trio.testing.wait_all_tasks_blocked()
        it.started[-1].end("test")
        await trio.testing.wait_all_tasks_blocked()
        assert it.pool.spares == 0
        assert it.pool.take(spec()).live
