"""One session against a scripted agent: answers, limits, ends. Time is virtual."""

from __future__ import annotations

import errno
import gc
import os
import weakref
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING

import pytest
import trio
import trio.testing

from fakes import FakeAgent, FakeJail, launching
from nsm.wire.errors import (
    OverloadedError,
    SessionEndedError,
    StartFailedError,
    UnknownOperationError,
)
from nsmd.agent_link.frames import MAX_STREAM_BYTES, CheckedFrame
from nsmd.host.event_loop import poller
from nsmd.model.lifecycle import SessionState
from nsmd.model.values import Output, SessionLimits
from nsmd.sessions.agent_session import START_TIMEOUT_S
from nsmd.sessions.execution_queue import RESUME_S
from processes import go_on, stopped
from sessionbench import TENANCY, Bench, bench
from virtual_time import virtual_time

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from nsmd.model.values import JailSpec

pytestmark = virtual_time


async def test_code_for_a_starting_session_runs_when_it_is_ready() -> None:
    async with bench() as it:
        executions = [it.submit(str(n)) for n in range(5)]
        assert it.session.state is SessionState.STARTING
        answers = [(await execution.wait()).outcome.stdout for execution in executions]
        assert answers == ["0", "1", "2", "3", "4"]


async def test_a_full_queue_refuses() -> None:
    async with bench(limits=SessionLimits(max_queued=2)) as it:
        await it.submit("warm").wait()
        it.submit("wait")
        it.submit("2")
        it.submit("3")
        with pytest.raises(OverloadedError, match="2 executions waiting"):
            it.submit("4")


async def test_an_agent_that_says_nothing_of_itself_does_without_what_it_does_not_offer() -> None:
    seen: list[str] = []

    async def older(agent: FakeAgent, jail: FakeJail) -> None:
        await agent.send({"type": "ready"})
        while True:
            frame = await agent.receive()
            seen.append(frame["type"])
            await agent.answer(frame, stdout="1")

    async with bench(older) as it:
        output: list[Output] = []
        it.session.follow()
        result = await it.submit("x", output=output).wait()
        assert (result.outcome.stdout, output) == ("1", [])
        frame = {"type": "check", "id": it.session.requests.new_id()}
        with pytest.raises(UnknownOperationError, match="does not offer 'check'") as error:
            await it.session.requests.ask("check", frame, (CheckedFrame,), 1)
        assert "build it again" in error.value.hint
        await trio.sleep(TENANCY.idle_timeout_s + 1)
        assert it.session.end_reason == "idle timeout"
    assert seen == ["execute"]


async def test_an_agent_of_the_future_is_used_as_far_as_it_is_understood() -> None:
    async def newer(agent: FakeAgent, jail: FakeJail) -> None:
        await agent.send({"type": "ready", "protocol": 7, "capabilities": ["teleport", "stream"]})
        await agent.send({"type": "mood", "mood": "fine"})
        while True:
            frame = await agent.receive()
            output = {"type": "output", "id": frame["id"], "stream": "stdout", "text": "piece"}
            await agent.send({**output, "colour": "green"})
            await agent.answer(frame, stdout="piece", weather={"of": ["tomorrow"]})

    async with bench(newer) as it:
        output: list[Output] = []
        result = await it.submit("x", output=output).wait()
        assert result.outcome.stdout == "piece"
        assert [piece.text for piece in output] == ["piece"]


async def test_output_that_nobody_has_room_for_is_shortened() -> None:
    async def boundless(agent: FakeAgent, jail: FakeJail) -> None:
        await agent.send({"type": "ready"})
        while True:
            frame = await agent.receive()
            await agent.answer(frame, stdout="begin" + "x" * 60_000_000 + "end")

    async with bench(boundless) as it:
        outcome = (await it.submit("x").wait()).outcome
        assert len(outcome.stdout) < MAX_STREAM_BYTES + 100
        assert outcome.stdout.startswith("beginx")
        assert outcome.stdout.endswith("xend")
        omitted = outcome.truncated["stdout"].omitted_bytes
        assert omitted == 60_000_008 - MAX_STREAM_BYTES
        assert f"[... {omitted} bytes left out ...]" in outcome.stdout


@pytest.mark.parametrize(
    ("sent", "says"), [(b"Welcome!\n", "no agent says .*"), (b"", "")], ids=["no agent", "dies"]
)
async def test_a_jail_that_does_not_start_is_quoted(sent: bytes, says: str) -> None:
    async def failing(agent: FakeAgent, jail: FakeJail) -> None:
        jail.words = "bwrap: No permissions"
        if sent:
            await agent.send_raw(sent)
            await trio.sleep_forever()

    async with bench(failing) as it:
        with pytest.raises(StartFailedError, match=f"{says}bwrap: No permissions"):
            await it.submit("x").wait()


async def test_an_agent_that_never_gets_ready() -> None:
    async def silent(agent: FakeAgent, jail: FakeJail) -> None:
        jail.words = "bwrap: something is odd"
        await trio.sleep_forever()

    async with bench(silent) as it:
        start = trio.current_time()
        with pytest.raises(
            StartFailedError, match=r"not ready .* bwrap: something is odd"
        ) as error:
            await it.submit("x").wait()
        assert "nsm doctor" in error.value.hint
        assert trio.current_time() - start == pytest.approx(START_TIMEOUT_S)


async def test_a_launcher_that_fails_fails_what_waits() -> None:
    async with launching() as launcher, trio.open_nursery() as nursery:
        launcher.fail = StartFailedError("no bwrap here", hint="Install it.")
        it = Bench(launcher, SessionLimits(), nursery)
        execution = it.submit("x")
        nursery.start_soon(it.session.run)
        with pytest.raises(StartFailedError, match="no bwrap here"):
            await execution.wait()
        await it.session.wait_ended()
        assert it.watcher.ended == [it.session]
        nursery.cancel_scope.cancel()


GARBAGE = [
    b"\xff\xff\xff\xff rest",
    b"\x00\x00\x00\x05nonsense",
    b"\x00\x00\x00\x02[]",
    b'\x00\x00\x00\x0f{"type": "odd"}\x00\x00\x00\x01\xff',
    b'\x00\x00\x00\x12{"type": "result"}',
    b'\x00\x00\x00\x2c{"type":"result","id":"x","exit_code": "zero"}'[:48],
    b"\x00\x00\x27\x10" + b"[" * 10_000,
    b'\x00\x00\x00\x13{"type": NaN, "a":1}'[:23],
]


@pytest.mark.parametrize("data", GARBAGE)
async def test_garbage_from_a_jail_ends_that_session_with_the_reason(data: bytes) -> None:
    async def hostile(agent: FakeAgent, jail: FakeJail) -> None:
        await agent.be_ready()
        await agent.receive()
        await agent.send_raw(data)
        await trio.sleep_forever()

    async with bench(hostile) as it:
        with pytest.raises(SessionEndedError, match=r"broke the protocol"):
            await it.submit("x").wait()
        await it.session.wait_ended()
        assert it.jail.killed


async def test_an_idle_session_ends_after_its_limit() -> None:
    async with bench() as it:
        await it.submit("x").wait()
        start = trio.current_time()
        await it.session.wait_ended()
        assert trio.current_time() - start == pytest.approx(TENANCY.idle_timeout_s)
        assert it.session.end_reason == "idle timeout"


async def test_background_processes_keep_a_session() -> None:
    asked = 0

    async def busy_at_first(agent: FakeAgent, jail: FakeJail) -> None:
        nonlocal asked
        await agent.be_ready()
        while True:
            frame = await agent.receive()
            if frame["type"] == "status":
                asked += 1
                left = 1 if asked < 3 else 0
                await agent.send({"type": "status", "running": None, "background": left})

    async with bench(busy_at_first) as it:
        await it.session.wait_ended()
        assert asked == 3
        assert trio.current_time() - it.session.created_s == pytest.approx(300)


async def test_an_agent_that_is_stopped_is_not_idle() -> None:
    async def silent(agent: FakeAgent, jail: FakeJail) -> None:
        jail.pid = process.pid
        await agent.be_ready()
        await trio.sleep_forever()

    with stopped() as process:
        async with bench(silent) as it:
            await trio.sleep(500)
            assert it.session.state is SessionState.IDLE
            go_on(process)
            await it.session.wait_ended()
            assert it.session.end_reason == "idle timeout"


async def test_a_session_in_use_is_not_idle_and_ends_with_its_lifetime() -> None:
    async with bench() as it:
        for _ in range(3):
            await trio.sleep(90)
            await it.submit("x").wait()
        execution = it.submit("wait", timeout_s=5000)
        with pytest.raises(SessionEndedError, match="lifetime limit"):
            await execution.wait()
        assert trio.current_time() - it.session.created_s == pytest.approx(1000)


async def test_a_spare_waits_without_limit() -> None:
    async with bench(tenancy=None) as it:
        await trio.sleep(10_000)
        assert it.session.state is SessionState.IDLE
        it.session.claim(TENANCY)
        await it.session.wait_ended()
        assert it.session.end_reason == "idle timeout"


async def test_a_one_shot_that_is_interrupted_while_it_starts_is_ended() -> None:
    async with bench() as it:
        execution = it.submit("x", one_shot=True)
        assert it.session.state is SessionState.STARTING
        execution.interrupt()
        assert (await execution.wait()).outcome.interrupted
        start = trio.current_time()
        await it.session.wait_ended()
        assert trio.current_time() == start


class Launching:
    """Launches jails as a test says."""

    def __init__(self, launch: Callable[[], Awaitable[FakeJail]]) -> None:
        self._launch = launch

    async def prepare(self, spec: JailSpec) -> None:
        del spec

    async def launch(self, spec: JailSpec, group: int | None = None) -> FakeJail:
        del spec, group
        return await self._launch()


async def test_a_session_that_is_killed_while_its_jail_is_made_ends(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with bench() as it, trio.open_nursery() as nursery:
        slow = Launching(trio.sleep_forever)
        other = Bench(it.launcher, SessionLimits(), nursery, launching=slow)
        execution = other.submit("x")
        nursery.start_soon(other.session.run)
        await trio.testing.wait_all_tasks_blocked()
        other.session.end("killed by a test")
        with pytest.raises(SessionEndedError, match="killed by a test"):
            await execution.wait()
        await other.session.wait_ended()
        nursery.cancel_scope.cancel()
    assert not caplog.records, "no error inside the supervisor"


async def test_an_abandoned_one_shot_is_ended_and_a_named_one_goes_on() -> None:
    async with bench() as it:
        execution = it.submit("wait")
        await trio.testing.wait_all_tasks_blocked()
        execution.abandon()
        await trio.testing.wait_all_tasks_blocked()
        assert it.session.state is SessionState.RUNNING
        execution.interrupt()
        await execution.wait()
        it.submit("wait", one_shot=True).abandon()
        await it.session.wait_ended()


async def test_an_abandoned_one_shot_waits_for_a_client_that_may_come_back() -> None:
    async with bench() as it:
        execution = it.submit("wait", timeout_s=2 * RESUME_S, one_shot=True, resumes=True)
        await trio.testing.wait_all_tasks_blocked()
        execution.abandon()
        execution.join()
        await trio.sleep(RESUME_S + 1)
        assert it.session.live
        execution.abandon()
        began_s = trio.current_time()
        await it.session.wait_ended()
        assert trio.current_time() - began_s == RESUME_S


@pytest.mark.parametrize(
    ("how", "says"),
    [("end", "killed by nsm"), ("die", "jail died"), ("shut down", "shutting down")],
)
async def test_the_end_of_a_session_fails_what_runs_and_waits(how: str, says: str) -> None:
    async with bench() as it:
        executions = [it.submit("wait"), it.submit("b")]
        await trio.testing.wait_all_tasks_blocked()
        if how == "end":
            it.session.end("killed by nsm")
            with pytest.raises(SessionEndedError):
                it.submit("late")
        elif how == "die":
            it.jail.kill()
            await it.session.wait_ended()
    for execution in executions:
        with pytest.raises(SessionEndedError, match=says):
            await execution.wait()


async def test_an_error_that_is_remembered_holds_nothing_of_those_who_were_told_it() -> None:
    class Large:
        """Stands for megabytes of code."""

    async with bench() as it:
        execution = it.submit("wait")
        await trio.testing.wait_all_tasks_blocked()
        it.session.end("killed by test")

        async def fail(ask: Callable[[], Awaitable[object]]) -> weakref.ref[Large]:
            large = Large()
            with suppress(SessionEndedError):
                await ask()
            return weakref.ref(large)

        question = partial(it.session.requests.ask, "check", {"id": "q"}, (), 1)
        for ask in (execution.wait, question):
            large = await fail(ask)
            gc.collect()
            assert large() is None


async def test_an_agent_that_lets_go_of_its_channel_and_lives() -> None:
    async def leaving(agent: FakeAgent, jail: FakeJail) -> None:
        await agent.be_ready()
        await agent.receive()
        await agent.aclose()
        await trio.sleep_forever()

    async with bench(leaving) as it:
        with pytest.raises(SessionEndedError, match="its agent ended its channel"):
            await it.submit("x").wait()
        await it.session.wait_ended()
        assert it.jail.killed


async def test_an_agent_that_reads_late_gets_all() -> None:
    """Data that its socket does not take at once waits in the supervisor."""

    async def late(agent: FakeAgent, jail: FakeJail) -> None:
        await agent.be_ready()
        for _ in range(2):
            await trio.sleep(5)
            frame = await agent.receive()
            await agent.answer(frame, stdout=str(len(frame["code"])))
        await trio.sleep_forever()

    async with bench(late) as it:
        for _ in range(2):
            result = await it.submit("x" * 3_000_000).wait()
            assert result.outcome.stdout == "3000000"


async def test_a_session_ends_while_its_agent_reads_nothing() -> None:
    async def deaf(agent: FakeAgent, jail: FakeJail) -> None:
        await agent.be_ready()
        await trio.sleep_forever()

    async with bench(deaf) as it:
        execution = it.submit("x" * 3_000_000)
        await trio.testing.wait_all_tasks_blocked()
        it.session.end("killed by a test")
        with pytest.raises(SessionEndedError, match="killed by a test"):
            await execution.wait()
        await it.session.wait_ended()


async def test_a_session_is_one_task() -> None:
    """A thousand sessions are usual, and each task takes the supervisor some 4 KiB."""
    poller()  # one more that all share
    before = trio.lowlevel.current_statistics().tasks_living
    async with bench() as it:
        await it.submit("x").wait()
        await trio.testing.wait_all_tasks_blocked()
        others = 2  # the fake agent and the timers that all sessions share
        assert trio.lowlevel.current_statistics().tasks_living - before == 1 + others


@pytest.mark.parametrize("number", [errno.EMFILE, errno.EAGAIN, errno.ENOMEM])
async def test_no_room_for_a_jail_is_told_and_costs_nobody_else(number: int) -> None:
    async with bench() as it:
        await it.submit("x").wait()

        async def full() -> FakeJail:
            raise OSError(number, os.strerror(number))

        async with trio.open_nursery() as nursery:
            other = Bench(it.launcher, SessionLimits(), nursery, launching=Launching(full))
            execution = other.submit("x")
            nursery.start_soon(other.session.run)
            with pytest.raises(StartFailedError, match=os.strerror(number)) as error:
                await execution.wait()
            assert "ulimit" in error.value.hint
            await other.session.wait_ended()
            nursery.cancel_scope.cancel()
        assert (await it.submit("y").wait()).outcome.stdout == "y"


async def test_a_fault_of_ours_costs_one_session(caplog: pytest.LogCaptureFixture) -> None:
    async def sleepy(agent: FakeAgent, jail: FakeJail) -> None:
        await agent.be_ready()
        await agent.receive()
        jail.stderr_text = lambda: str(1 / 0)  # type: ignore[method-assign]

    async with bench(sleepy) as it:
        with pytest.raises(SessionEndedError, match="an error inside the supervisor"):
            await it.submit("x").wait()
        await it.session.wait_ended()
        assert it.watcher.ended == [it.session]
    assert "ZeroDivisionError" in caplog.text
