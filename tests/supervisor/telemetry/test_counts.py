"""Counts of events, kept small in number."""

from __future__ import annotations

import math
import random
import time
from collections.abc import Mapping
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import pytest
import trio
import trio.testing

from control_bench import Bench, bench
from fakes import CAPABILITIES, job_facts, outcomes
from nsm.wire.errors import AuditFailedError, BadRequestError, NsmError, StartFailedError
from nsm.wire.messages import Cancel
from nsmd.bridge.calls import ProgramCall
from nsmd.bridge.programs import Caller, ProgramEnd, RecordedCall
from nsmd.model.values import LimitEvent, Sources, Tenancy
from nsmd.telemetry import counts as counting
from nsmd.telemetry.counts import BOUNDS, SHOWN, Histogram, together
from nsmd.telemetry.telemetry import PASSES, PAUSE_S
from virtual_time import virtual_time

if TYPE_CHECKING:
    from fakes import FakeAgent, FakeJail
    from nsmd.model.events import EventKind, SupervisorEvent
    from nsmd.sessions.execution import Execution


pytestmark = virtual_time


def values(it: Bench, name: str) -> Mapping[tuple[str, ...], Any]:
    """Return the current values of one metric."""
    return it.telemetry.read()[name]


async def test_executions_by_what_became_of_them() -> None:
    async with bench(outcomes) as it:
        peer = await it.connect()
        for code in ("fine", "fine", "error", "timeout", "interrupted"):
            await peer.call("run", env="python", session="a", code=code)
        with pytest.raises(NsmError):
            await peer.call("run", env="bash", session="b", code="die")
        expected = {
            ("python", "ok"): 2,
            ("python", "error"): 1,
            ("python", "timeout"): 1,
            ("python", "interrupted"): 1,
            ("bash", "lost"): 1,
        }
        assert values(it, "nsm_executions") == expected
        assert {
            key: each.count for key, each in values(it, "nsm_execution_latency_seconds").items()
        } == expected
        assert {
            key: each.count for key, each in values(it, "nsm_execution_wait_seconds").items()
        } == ({("python",): 5, ("bash",): 1})
        await trio.testing.wait_all_tasks_blocked()
        assert values(it, "nsm_sessions_ended") == {("bash", "lost"): 1}
        assert values(it, "nsm_sessions") == {("python", "idle"): 1}


async def test_latency_has_the_wait_in_it() -> None:
    """The agent answers after 3 s, so the second execution waits for 3 and takes 6."""

    async def slow(agent: Any, jail: Any) -> None:
        del jail
        await agent.be_ready()
        while (frame := await agent.receive())["type"] == "execute":
            await trio.sleep(3)
            await agent.answer(frame)

    async with bench(slow) as it:
        peer = await it.connect()
        first = await peer.start("run", env="python", session="a", code="1")
        second = await peer.start("run", env="python", session="a", code="2")
        await peer.answer(first)
        await peer.answer(second)
        latency = values(it, "nsm_execution_latency_seconds")["python", "ok"]
        wait = values(it, "nsm_execution_wait_seconds")[("python",)]
        assert (latency.max_s, latency.sum_s) == (pytest.approx(6), pytest.approx(9))
        assert (wait.max_s, wait.sum_s) == (pytest.approx(3), pytest.approx(3))


async def test_executions_of_an_earlier_supervisor_are_counted_apart() -> None:
    async with bench() as it:
        execution = await execution_of(it)
        before = (
            dict(values(it, "nsm_executions")),
            values(it, "nsm_execution_wait_seconds")[("python",)].count,
        )
        execution.earlier = True
        it.run_service.events.publish(
            "execution_finished", session=execution.session.id, subject=execution
        )
        assert values(it, "nsm_executions_taken_up") == {("python", "ok"): 1}
        assert (
            values(it, "nsm_executions"),
            values(it, "nsm_execution_wait_seconds")[("python",)].count,
        ) == before
        assert it.telemetry.recent.after(0)[-1].facts["duration_s"] is None


async def test_starts_by_kind_and_those_that_failed() -> None:
    async with bench() as it:
        peer = await it.connect()
        await peer.call("run", env="python", code="1")
        it.launcher.fail = StartFailedError("no room")
        with pytest.raises(StartFailedError):
            await peer.call("run", env="bash", code="1")
        await trio.testing.wait_all_tasks_blocked()
        starts = values(it, "nsm_session_start_seconds")
        assert {key: each.count for key, each in starts.items()} == {("python", "cold"): 1}
        assert values(it, "nsm_session_start_failures") == {("bash",): 1}
        assert values(it, "nsm_sessions_ended") == {("python", "ended"): 1, ("bash", "lost"): 1}


async def test_hits_misses_and_refills() -> None:
    async with bench(max_spares=2) as it:
        peer = await it.connect()
        await peer.call("run", env="python", session="a", code="1")
        await trio.sleep(60)
        await peer.call("run", env="python", session="b", code="1")
        await trio.sleep(1)
        assert values(it, "nsm_pool_takes") == {("python", "miss"): 1, ("python", "hit"): 1}
        ready = len(it.run_service.session_manager.pool.kinds[0].ready)
        assert values(it, "nsm_pool_spares")["python", "ready"] == ready > 0
        assert (
            values(it, "nsm_pool_wanted")[("python",)]
            == it.run_service.session_manager.pool.kinds[0].plan.wanted
        )
        refills, starts = (
            values(it, "nsm_pool_refill_seconds")[("python",)],
            values(it, "nsm_session_start_seconds"),
        )
        assert (refills.count, starts["python", "cold"].count) == (ready + 1, ready + 2)


async def test_clients_come_and_go() -> None:
    async with bench() as it:
        for _ in range(2):
            peer = await it.connect()
            await peer.stream.aclose()
        peer = await it.connect()
        await peer.call("ping")
        silent = it.raw()
        await trio.testing.wait_all_tasks_blocked()
        assert values(it, "nsm_clients") == {("control",): 1, ("mcp",): 0, ("http",): 0}
        assert values(it, "nsm_clients_connected") == {("control",): 3, ("mcp",): 0, ("http",): 0}
        moved = values(it, "nsm_client_bytes")
        assert moved["control", "in"] > 0
        silent.send(b'{"nsm": 1}\n')
        await trio.testing.wait_all_tasks_blocked()
        assert it.attached == [b'{"nsm": 1}\n']
        assert values(it, "nsm_clients_connected")[("mcp",)] == 1
        assert values(it, "nsm_clients")[("mcp",)] == 0
        assert values(it, "nsm_client_bytes")["mcp", "in"] == 11


async def test_calls_of_the_bridge() -> None:
    caller = Caller(client="agent", scope="box", way="mcp")
    answers: dict[str, ProgramEnd | NsmError] = {
        "ok": ProgramEnd(exit_code=0, duration_s=3.0),
        "timeout": ProgramEnd(exit_code=None, why_stopped="timeout", duration_s=300.0),
        "refused": BadRequestError("no"),
        "unaudited": AuditFailedError("no"),
    }
    async with bench() as it, trio.open_nursery() as nursery:
        assert values(it, "nsm_bridge_calls") == {}
        for outcome, answer in answers.items():
            asked = RecordedCall(id=outcome, caller=caller, program="deploy", arguments=())
            call = ProgramCall(asked, None, nursery)
            call.settle(answer)
            events = it.run_service.events
            events.publish("program_ended", subject=call, program="", outcome=outcome)
        assert values(it, "nsm_bridge_calls") == dict.fromkeys([(each,) for each in answers], 1)
        took = values(it, "nsm_bridge_call_seconds")
        assert {key: (each.count, each.sum_s) for key, each in took.items()} == {
            ("ok",): (1, 3.0),
            ("timeout",): (1, 300.0),
        }
        assert (
            values(it, "nsm_bridge_audit_failing")
            == values(it, "nsm_bridge_calls_running")
            == {(): 0}
        )
        told = it.telemetry.recent.after(0)[-1]
        assert (told.kind, told.facts["call_id"]) == ("program_ended", "unaudited")
        assert (told.facts["client"], told.facts["outcome"]) == ("agent", "unaudited")


async def execution_of(it: Bench) -> Execution:
    peer = await it.connect()
    wire = await peer.call("run", env="python", session="a", code="1")
    return it.run_service.execution(wire["execution_id"])


async def test_limits_are_counted_and_told() -> None:
    async with bench() as it:
        execution = await execution_of(it)
        told: list[SupervisorEvent] = []
        it.run_service.events.subscribe(told.append)
        execution.limit_events = (
            LimitEvent(kind="memory", limit=512, enforced_by="watchdog", what="a process", times=3),
        )
        it.run_service.events.publish(
            "execution_finished", session=execution.session.id, subject=execution
        )
        assert values(it, "nsm_limits_hit") == {("memory", "watchdog"): 3}
        (hit,) = [event for event in told if event.kind == "limit_hit"]
        assert (hit.session, hit.facts["what"]) == (execution.session.id, "a process")


async def test_names_that_clients_choose_are_no_labels(monkeypatch: pytest.MonkeyPatch) -> None:
    async with bench() as it:
        session = (await execution_of(it)).session
        counts = it.telemetry.counts
        assert counts.environment_of(session) == "python"
        assert counts.label("made-up-by-a-client") == counting.OWN
        assert session.tenancy is not None
        session.tenancy = Tenancy(
            name=None,
            scope="s",
            client="c",
            idle_timeout_s=1,
            max_lifetime_s=1,
            own=Sources(directory="/somewhere"),
        )
        assert counts.environment_of(session) == counting.OWN, "also if its name is everybody's"
        monkeypatch.setattr(counting, "MAX_ENVIRONMENTS", 1)
        assert counts.label("bash") == counting.OTHER
        assert counts.label("python") == "python"


async def test_the_event_loop_is_seen_to_hang() -> None:
    async with bench() as it:
        lag, events = it.telemetry.lag, it.run_service.events
        events.publish("configuration_reloaded")
        begin = time.perf_counter()
        while time.perf_counter() - begin < 0.06:
            pass  # as what hangs does
        await several_passes()
        assert lag.busy.count == PASSES
        assert lag.busy.max_s >= 0.06
        events.publish("configuration_reloaded")
        await several_passes()
        assert lag.busy.count == PASSES, "not again at once"
        await trio.sleep(PAUSE_S)
        events.publish("configuration_reloaded")
        await several_passes()
        assert lag.busy.count == 2 * PASSES


async def several_passes() -> None:
    for _ in range(PASSES + 2):
        await trio.lowlevel.checkpoint()


JOB: Mapping[str, Any] = job_facts(running=True, exit_code=None)._asdict()


async def quick_jobs(agent: FakeAgent, jail: FakeJail) -> None:
    """An agent whose jobs end at once, as the program says; `sleep` does not. The end of one is
    told right behind the answer to its start.
    """
    del jail
    await agent.be_ready([*CAPABILITIES, "jobs"])
    number = 0
    while (frame := await agent.receive())["type"] == "job_start":
        number += 1
        program = frame["argv"][0]
        job = {**JOB, "job": str(number), "argv": frame["argv"]}
        await agent.send({"type": "job", "id": frame["id"], "job": job})
        if program != "sleep":
            codes = {"true": 0, "false": 1, "stopped": 143}
            end = {**job, "running": False, "exit_code": codes[program]}
            end["stopped"] = program == "stopped"
            await agent.send({"type": "job_ended", "job": end})


async def test_jobs_by_outcome() -> None:
    async with bench(quick_jobs) as it:
        told: list[str] = []
        kinds: tuple[EventKind, ...] = ("job_started", "job_ended")
        it.run_service.events.subscribe(lambda event: told.append(event.kind), kinds)
        peer = await it.connect()
        assert values(it, "nsm_jobs_started") == values(it, "nsm_jobs") == {}
        for program in ("true", "true", "false", "stopped", "sleep", "sleep"):
            await peer.call("job_start", session="a", env="python", argv=[program])
        assert told == [*(["job_started", "job_ended"] * 4), *(["job_started"] * 2)]
        assert values(it, "nsm_jobs_started") == {("python",): 6}
        assert values(it, "nsm_jobs") == {("python",): 2}
        ended = {("python", "ok"): 2, ("python", "error"): 1, ("python", "stopped"): 1}
        assert values(it, "nsm_jobs_ended") == ended
        events = it.telemetry.recent.after(0)
        facts = [dict(each.facts) for each in events if each.kind in kinds]
        assert facts[:2] == [
            {"job": "1", "env": "python", "name": "a", "client": "test"},
            {
                "job": "1",
                "env": "python",
                "name": "a",
                "outcome": "ok",
                "exit_code": 0,
                "duration_s": 1.5,
            },
        ]
        await peer.call("kill", all=True)
        assert values(it, "nsm_jobs") == {}
        assert values(it, "nsm_jobs_ended") == {**ended, ("python", "lost"): 2}


async def test_a_job_counts_if_its_client_gave_up() -> None:
    answers = trio.Event()

    async def late(agent: FakeAgent, jail: FakeJail) -> None:
        del jail
        await agent.be_ready([*CAPABILITIES, "jobs"])
        frame = await agent.receive()
        await answers.wait()
        await agent.send({"type": "job", "id": frame["id"], "job": JOB})
        await agent.receive()

    async with bench(late) as it:
        peer = await it.connect()
        asked = await peer.start("job_start", session="a", env="python", argv=["make"])
        await trio.testing.wait_all_tasks_blocked()
        await peer.send(Cancel(asked))
        with pytest.raises(BadRequestError, match="cancelled"):
            await peer.answer(asked)
        assert values(it, "nsm_jobs") == {}
        answers.set()
        await trio.testing.wait_all_tasks_blocked()
        assert values(it, "nsm_jobs") == values(it, "nsm_jobs_started") == {("python",): 1}


# Buckets, and what is made of them.


def filled(*seconds: float) -> Histogram:
    histogram = Histogram()
    for each in seconds:
        histogram.add(each)
    return histogram


def test_bounds_are_ten_to_a_decade_and_all_of_them_are_floats_as_written() -> None:
    assert list(BOUNDS) == sorted(set(BOUNDS))
    assert all(above / below < 1.3 for below, above in pairwise(BOUNDS))
    assert [repr(BOUNDS[index]) for index in SHOWN][:6] == (
        ["0.0001", "0.00025", "0.0005", "0.001", "0.0025", "0.005"]
    )


def test_a_bound_belongs_to_what_is_below_it() -> None:
    """`le` means less or equal."""
    for bound, count in filled(0.1, 0.25).shown():
        assert count == (bound >= 0.1) + (bound >= 0.25), bound


@pytest.mark.parametrize("spread", [0.1, 1.0, 3.0])
def test_percentiles_are_a_quarter_off_at_most(spread: float) -> None:
    chance = random.Random(spread)
    durations = sorted(chance.lognormvariate(math.log(0.05), spread) for _ in range(3000))
    histogram = filled(*durations)
    for share in (0.01, 0.5, 0.9, 0.99, 1):
        exact = durations[math.ceil(share * len(durations)) - 1]
        told = histogram.quantile(share)
        assert told is not None
        assert exact / 1.27 <= told <= exact * 1.27, share
    assert histogram.quantile(1) == durations[-1]


def test_histograms_add_up() -> None:
    one, other = filled(0.1, 0.2), filled(3.0)
    whole = together([one, other])
    assert (whole.count, whole.max_s) == (3, 3.0)
    assert whole.sum_s == pytest.approx(3.3)
    assert one.count == 2
    kept = one.copy()
    one.add(1)
    assert (kept.count, kept.max_s) == (2, 0.2)
