"""`drain`: nothing new, what runs comes to its end, and a deadline. Time is virtual."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import pytest
import trio
import trio.testing

from control_bench import bench
from nsm.wire.errors import DrainingError, ShuttingDownError
from nsm.wire.messages import Cancel
from nsmd.fdstore.store import NoStore
from nsmd.restart.drain import ANSWERS_S, INTERRUPTED_S, after_sigterm
from virtual_time import virtual_time

if TYPE_CHECKING:
    from fakes import FakeAgent, FakeJail
    from nsmd.fdstore.store import StoreKind
    from nsmd.model.lifecycle import How

pytestmark = virtual_time


async def deaf(agent: FakeAgent, jail: FakeJail) -> None:
    """An agent whose code does not listen to interrupts."""
    del jail
    await agent.be_ready()
    while True:
        await agent.receive()


async def test_a_drain_finishes_running_and_waiting_code_and_begins_nothing() -> None:
    async with bench() as it:
        peer, other = await it.connect(), await it.connect()
        running = await other.start("run", env="python", code="wait", session="a")
        queued = await other.start("run", env="python", code="2", session="a")
        await trio.testing.wait_all_tasks_blocked()
        drain = await peer.start("drain")
        await trio.testing.wait_all_tasks_blocked()
        third = await it.connect()
        for session in ("a", "b", None):
            with pytest.raises(DrainingError, match=r"drained \(by test\).*not run.*--cancel"):
                await third.call("run", env="python", code="3", session=session)
        with pytest.raises(DrainingError):
            await third.call("run_in", target="a", code="3")
        assert [row["name"] for row in (await third.call("sessions"))["sessions"]] == ["a"]
        await third.call("interrupt", target="a")
        assert (await other.answer(running))["interrupted"]
        assert (await other.answer(queued))["stdout"] == "2"
        assert (await peer.answer(drain))["drained"]
        lefts = [event.data["left"] for event in peer.events]
        assert lefts[0] == 2
        assert lefts == sorted(set(lefts), reverse=True)
        assert {event.data["remaining_s"] for event in peer.events} == {None}


async def test_at_the_deadline_what_is_left_is_interrupted() -> None:
    async with bench() as it:
        peer, other = await it.connect(), await it.connect()
        running = await other.start("run", env="python", code="wait", session="a")
        queued = await other.start("run", env="python", code="2", session="a")
        await trio.testing.wait_all_tasks_blocked()
        begun_s = trio.current_time()
        report = await peer.call("drain", timeout_s=5)
        assert trio.current_time() - begun_s == pytest.approx(5)
        assert (report["drained"], report["interrupted"], report["sessions"]) == (True, 2, 1)
        assert peer.events[0].data["remaining_s"] == pytest.approx(5)
        answers = [await other.next_result(), await other.next_result()]
        assert all(answer["interrupted"] for answer in answers)
        del running, queued


async def test_a_drain_goes_on_without_who_asked_for_it_and_can_be_taken_back() -> None:
    async with bench() as it:
        peer, other = await it.connect(), await it.connect()
        await other.start("run", env="python", code="wait", session="a")
        await trio.testing.wait_all_tasks_blocked()
        drain = await peer.start("drain")
        await trio.testing.wait_all_tasks_blocked()
        await peer.send(Cancel(drain))
        report = await peer.answer(drain)
        assert (report["drained"], report["cancelled"], report["left"]) == (False, False, 1)
        with pytest.raises(DrainingError):
            await peer.call("run", env="python", code="3")
        waiting = await peer.start("drain")
        await trio.testing.wait_all_tasks_blocked()
        third = await it.connect()
        assert (await third.call("drain", cancel=True))["cancelled"]
        assert not (await third.call("drain", cancel=True))["cancelled"]
        assert (await peer.answer(waiting))["cancelled"]
        assert (await third.call("run", env="python", code="3"))["stdout"] == "3"
        assert it.run_service.find("a").state.value == "running"
        assert (await third.call("status"))["draining"] is None


async def test_code_that_does_not_listen_costs_its_session() -> None:
    async with bench(deaf) as it:
        peer, other = await it.connect(), await it.connect()
        await other.start("run", env="python", code="x", session="a")
        await trio.testing.wait_all_tasks_blocked()
        report = await peer.call("drain", timeout_s=0)
        assert (report["drained"], report["interrupted"], report["sessions"]) == (True, 1, 0)


# On SIGTERM: the same, and an end.


async def test_before_an_end_answers_come_and_new_code_is_told_to_come_again() -> None:
    async with bench() as it:
        peer, other = await it.connect(), await it.connect()
        running = await other.start("run", env="python", code="wait", session="a")
        await trio.testing.wait_all_tasks_blocked()
        begun_s = trio.current_time()
        it.draining.begin("SIGTERM", timeout_s=10, then="end")
        for session in ("a", "b"):
            with pytest.raises(ShuttingDownError, match="not run"):
                await peer.call("run", env="python", code="3", session=session)
        assert not (await peer.call("drain", cancel=True))["cancelled"], "the end is sure"
        assert await it.ending.wait() == "end"
        assert trio.current_time() - begun_s == pytest.approx(10 + ANSWERS_S)
        assert (await other.answer(running))["interrupted"]


async def test_before_an_end_nobody_waits_for_who_does_not_listen() -> None:
    async with bench(deaf) as it:
        other = await it.connect()
        await other.start("run", env="python", code="x", session="a")
        await trio.testing.wait_all_tasks_blocked()
        begun_s = trio.current_time()
        it.draining.begin("SIGTERM", timeout_s=10, then="end")
        await trio.sleep(1)
        it.draining.begin("SIGTERM", timeout_s=0, then="end")  # the second one
        await it.ending.wait()
        lasted_s = trio.current_time() - begun_s
        assert lasted_s == pytest.approx(1 + 2.0 + INTERRUPTED_S + ANSWERS_S)


async def test_sessions_that_stay_are_not_stopped() -> None:
    async with bench() as it:
        peer, other = await it.connect(), await it.connect()
        running = await other.start("run", env="python", code="wait", session="a")
        await trio.testing.wait_all_tasks_blocked()
        it.draining.begin("SIGTERM", timeout_s=10, then="leave")
        with pytest.raises(ShuttingDownError):
            await peer.call("run", env="python", code="3", session="b")
        later = await peer.start("run", env="python", code="3", session="a")
        assert await it.ending.wait() == "leave"
        assert it.run_service.find("a").state.value == "running"
        await (await it.connect()).call("interrupt", target="a")
        assert (await other.answer(running))["interrupted"]
        assert (await peer.answer(later))["stdout"] == "3"


async def test_an_end_follows_a_drain_that_is_over_already() -> None:
    async with bench() as it:
        peer = await it.connect()
        assert (await peer.call("drain"))["drained"]
        it.draining.begin("SIGTERM", timeout_s=math.inf, then="end")
        assert await it.ending.wait() == "end"


@pytest.mark.parametrize(
    ("kind", "then"), [("systemd", "leave"), ("keeper", "end"), ("none", "end")]
)
def test_sessions_are_left_to_the_service_manager_only(kind: StoreKind, then: How) -> None:
    store = NoStore()
    store.kind = kind
    assert after_sigterm(store) == then
