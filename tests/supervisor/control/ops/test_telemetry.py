"""Operations for who watches: metrics, percentiles, and events as they happen."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import pytest
import trio
import trio.testing

from control_bench import Bench, Peer, bench
from fakes import outcomes
from nsm.wire.errors import UnknownSessionError
from nsm.wire.messages import Cancel, Event, Result, read
from nsm.wire.telemetry import Occurrence, Stats
from nsmd.telemetry.telemetry import MAX_KEPT
from virtual_time import virtual_time

if TYPE_CHECKING:
    from collections.abc import Sequence

pytestmark = virtual_time


async def told(peer: Peer, **args: Any) -> list[Occurrence]:
    peer.events.clear()
    await peer.call("events", **args)
    return [read(Occurrence, event.data) for event in peer.events]


def kinds(occurrences: Sequence[Occurrence]) -> list[str]:
    return [each.kind for each in occurrences]


async def test_times_are_told_by_environment_and_outcome() -> None:
    async with bench(outcomes) as it:
        peer = await it.connect()
        empty = read(Stats, await peer.call("stats"))
        assert (empty.environments, empty.starts) == ((), ())
        for code in ("fine", "fine", "error"):
            await peer.call("run", env="python", session="a", code=code)
        await peer.call("run", env="bash", code="timeout")
        await trio.sleep(100)
        stats = read(Stats, await peer.call("stats"))
        bash, python = stats.environments
        assert (bash.env, dict(bash.outcomes)) == ("bash", {"timeout": 1})
        assert (python.env, dict(python.outcomes)) == ("python", {"error": 1, "ok": 2})
        assert (python.latency.total, python.wait.total) == (3, 3)
        assert [(start.env, start.kind, start.times.total) for start in stats.starts] == (
            [("bash", "cold", 1), ("python", "cold", 1)]
        )
        assert (stats.pool_hits, stats.pool_misses) == (0, 2)
        assert stats.uptime_s >= 100
        assert stats.event_loop.total > 0


async def test_events_until_now() -> None:
    async with bench() as it:
        peer = await it.connect()
        wire = await peer.call("run", env="python", session="a", code="1")
        await peer.call("run", env="python", session="b", code="1")
        session = wire["session"]["id"]
        everything = await told(peer)
        assert [each.number for each in everything] == list(range(1, len(everything) + 1))
        assert abs(everything[0].at - time.time()) < 3600
        assert everything[0].session is None
        assert kinds(await told(peer, last=2)) == kinds(everything)[-2:]
        assert await told(peer, last=0) == []
        assert kinds(await told(peer, last=9999)) == kinds(everything)
        mine = await told(peer, session="a")
        assert {each.session for each in mine} == {session}
        assert kinds(mine)[-2:] == ["execution_started", "execution_finished"]
        assert kinds(await told(peer, session="a", last=1)) == ["execution_finished"]
        assert await told(peer, session=session) == mine


async def test_events_of_a_session_that_is_gone() -> None:
    async with bench() as it:
        peer = await it.connect()
        one_shot = (await peer.call("run", env="python", code="1"))["session"]["id"]
        await trio.testing.wait_all_tasks_blocked()
        assert kinds(await told(peer, session=one_shot))[-1] == "session_ended"
        with pytest.raises(UnknownSessionError):
            await told(peer, session="nobody")


async def test_events_as_they_happen_until_cancelled() -> None:
    async with bench() as it:
        peer, other = await it.connect(), await it.connect()
        request = await peer.start("events", follow=True, last=0)
        await trio.testing.wait_all_tasks_blocked()
        await other.call("run", env="python", session="a", code="1")
        assert (await peer.next_event())["kind"] == "session_started"
        while (event := await peer.next_event())["kind"] != "execution_finished":
            pass
        await peer.send(Cancel(request))
        answer = await peer.next()
        assert isinstance(answer, Result)
        assert answer.result == {"number": event["number"]}


async def test_followers_of_a_session_are_told_of_no_other() -> None:
    async with bench() as it:
        peer, other = await it.connect(), await it.connect()
        await other.call("run", env="python", session="a", code="1")
        await peer.start("events", follow=True, last=0, session="a")
        await trio.testing.wait_all_tasks_blocked()
        await other.call("run", env="python", session="b", code="1")
        await other.call("kill", targets=["a"])
        event = await peer.next_event()
        assert (event["kind"], event["facts"]["name"]) == ("session_ended", "a")


async def flood(it: Bench, rounds: int) -> int:
    """Events faster than anybody reads."""
    for _ in range(rounds):
        for number in range(MAX_KEPT - 1):
            it.run_service.events.publish("draining", left=number, why="x" * 150)
        await trio.testing.wait_all_tasks_blocked()
    return rounds * (MAX_KEPT - 1)


async def test_a_slow_reader_is_told_how_many_it_missed_and_takes_no_memory() -> None:
    async with bench() as it:
        peer = await it.connect()
        await peer.start("events", follow=True, last=0)
        await trio.testing.wait_all_tasks_blocked()
        total = await flood(it, 6)
        it.run_service.events.publish("configuration_reloaded")
        received, missed, last = 0, 0, 0
        while True:
            message = await peer.next()
            assert isinstance(message, Event)
            if message.event == "missed":
                missed += message.data["count"]
                continue
            assert message.data["number"] > last
            last = message.data["number"]
            if message.data["kind"] == "configuration_reloaded":
                break
            received += 1
        assert received + missed == total
        assert 0 < received < total
