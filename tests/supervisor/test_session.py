"""One session against a scripted agent: answers, queues, limits, ends. Time is virtual."""

from __future__ import annotations

import errno
import gc
import os
import weakref
from contextlib import asynccontextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING

import pytest
import trio
import trio.testing

from fakes import FakeAgent, FakeJail, FakeLauncher, Watcher, echo, launching, spec
from nsm.wire.errors import (
    InternalError,
    OverloadedError,
    SessionEndedError,
    StartFailedError,
    UnknownOperationError,
)
from nsmd.agentframes import MAX_STREAM_BYTES, CheckedFrame
from nsmd.conversation import START_TIMEOUT_S
from nsmd.disuse import ANSWER_MARGIN_S
from nsmd.execution import Execution, Origin
from nsmd.lifecycle import State
from nsmd.proxy import Gateway
from nsmd.session import Session
from nsmd.timer import Timers
from nsmd.transcripts import TranscriptStore
from nsmd.values import Client, Output, RunRequest, SessionLimits, Tenancy

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable, Callable

    from fakes import Behaviour
    from nsmd.jail import Launcher
    from nsmd.values import JailSpec

TENANCY = Tenancy(name="a", scope="s", client="test", idle_timeout_s=100, max_lifetime_s=1000)


class Bench:
    """One session and what is needed to use it."""

    def __init__(
        self,
        launcher: FakeLauncher,
        limits: SessionLimits,
        nursery: trio.Nursery,
        *,
        launching: Launcher | None = None,
    ) -> None:
        self.launcher = launcher
        self.timers = Timers()
        nursery.start_soon(self.timers.run)
        self.watcher = Watcher()
        self.session = Session(
            "00000001",
            spec(),
            launcher=launching or launcher,
            limits=limits,
            watcher=self.watcher,
            start_limiter=trio.CapacityLimiter(1),
            transcripts=TranscriptStore(),
            gateway=Gateway(),
            timers=self.timers,
            nursery=nursery,
        )
        self._count = 0

    @property
    def jail(self) -> FakeJail:
        return self.launcher.jails[0]

    def submit(
        self,
        code: str,
        *,
        timeout_s: float = 30,
        one_shot: bool = False,
        output: list[Output] | None = None,
    ) -> Execution:
        self._count += 1
        client = Client(name="test", scope="s")
        execution = Execution(
            f"e{self._count}",
            RunRequest(client=client, env="python", code=code, session="a"),
            Origin(
                env="python",
                created=False,
                replaced=None,
                timeout_s=timeout_s,
                clamped_from_s=None,
                one_shot=one_shot,
            ),
            self.session,
            output.append if output is not None else None,
            lambda _: None,
        )
        self.session.submit(execution)
        return execution


@asynccontextmanager
async def bench(
    behave: Behaviour = echo,
    *,
    limits: SessionLimits | None = None,
    tenancy: Tenancy | None = TENANCY,
) -> AsyncGenerator[Bench]:
    async with launching(behave) as launcher, trio.open_nursery() as nursery:
        it = Bench(launcher, limits or SessionLimits(), nursery)
        if tenancy is not None:
            it.session.claim(tenancy)
        nursery.start_soon(it.session.run)
        yield it
        nursery.cancel_scope.cancel()
    assert all(jail.released for jail in launcher.jails)
    assert it.session.state is State.ENDED


async def test_code_runs_and_its_answer_comes_back(autojump_clock: trio.abc.Clock) -> None:
    async with bench() as it:
        result = await it.submit("1 + 1").wait()
        assert result.outcome.stdout == "1 + 1"
        assert result.session_name == "a"
        assert result.waited_s == 0
        assert it.session.executions == 1
        assert it.session.state is State.IDLE


async def test_what_is_submitted_while_the_session_starts_runs_when_it_is_ready(
    autojump_clock: trio.abc.Clock,
) -> None:
    async with bench() as it:
        executions = [it.submit(str(n)) for n in range(5)]
        assert it.session.state is State.STARTING
        answers = [(await execution.wait()).outcome.stdout for execution in executions]
        assert answers == ["0", "1", "2", "3", "4"]


async def test_waiting_for_others_is_told(autojump_clock: trio.abc.Clock) -> None:
    async def slow(agent: FakeAgent, jail: FakeJail) -> None:
        await agent.be_ready()
        while True:
            frame = await agent.receive()
            await trio.sleep(3)
            await agent.answer(frame)

    async with bench(slow) as it:
        await it.submit("warm").wait()
        first, second = it.submit("first"), it.submit("second")
        assert (await first.wait()).waited_s == 0
        assert (await second.wait()).waited_s == pytest.approx(3)


async def test_a_full_queue_refuses(autojump_clock: trio.abc.Clock) -> None:
    async with bench(limits=SessionLimits(max_queued=2)) as it:
        await it.submit("warm").wait()
        it.submit("wait")
        it.submit("2")
        it.submit("3")
        with pytest.raises(OverloadedError, match="2 executions waiting"):
            it.submit("4")


async def test_a_late_or_foreign_result_is_never_taken_for_an_answer(
    autojump_clock: trio.abc.Clock,
) -> None:
    async def confused(agent: FakeAgent, jail: FakeJail) -> None:
        await agent.be_ready()
        while True:
            frame = await agent.receive()
            await agent.answer({"id": "somebody-else"}, stdout="wrong")
            await agent.answer(frame, stdout="right")
            await agent.answer(frame, stdout="again")

    async with bench(confused) as it:
        assert (await it.submit("x").wait()).outcome.stdout == "right"
        assert (await it.submit("y").wait()).outcome.stdout == "right"


@pytest.mark.parametrize("kind", ["result", "error", "output"])
async def test_an_answer_to_nothing_is_ignored(kind: str, autojump_clock: trio.abc.Clock) -> None:
    unasked = {
        "type": kind,
        "id": "",
        "exit_code": 0,
        "stream": "stdout",
        "text": "",
        "message": "",
    }

    async def eager(agent: FakeAgent, jail: FakeJail) -> None:
        await agent.be_ready()
        await agent.send(unasked)
        while True:
            frame = await agent.receive()
            await agent.answer(frame, stdout="right")
            await agent.send(unasked)

    async with bench(eager) as it:
        await trio.testing.wait_all_tasks_blocked()
        assert (await it.submit("x").wait()).outcome.stdout == "right"
        await trio.testing.wait_all_tasks_blocked()
        assert it.session.state is State.IDLE


async def test_output_streams_to_whoever_asked(autojump_clock: trio.abc.Clock) -> None:
    async def chatty(agent: FakeAgent, jail: FakeJail) -> None:
        await agent.be_ready()
        frame = await agent.receive()
        assert frame["stream"] is True
        for n in range(100):
            await agent.send(
                {"type": "output", "id": frame["id"], "stream": "stdout", "text": str(n)}
            )
        await agent.send({"type": "output", "id": "other", "stream": "stdout", "text": "no"})
        await agent.answer(frame)
        await agent.receive()  # the next execution: everything before has been acknowledged
        assert agent.acknowledged >= 102
        await agent.aclose()

    async with bench(chatty) as it:
        output: list[Output] = []
        await it.submit("x", output=output).wait()
        assert "".join(piece.text for piece in output) == "".join(map(str, range(100)))
        with pytest.raises(SessionEndedError):
            await it.submit("y").wait()


async def test_interrupting_what_runs_and_what_waits(autojump_clock: trio.abc.Clock) -> None:
    async with bench() as it:
        running, waiting = it.submit("wait"), it.submit("never")
        await trio.testing.wait_all_tasks_blocked()
        waiting.interrupt()
        result = await waiting.wait()
        assert result.outcome.interrupted
        assert "before it began" in result.outcome.stderr
        running.interrupt()
        result = await running.wait()
        assert result.outcome.exit_code == 130
        running.interrupt()  # too late, harmless
        assert it.session.interrupt() is False
        assert (await it.submit("after").wait()).outcome.stdout == "after"


async def test_an_agent_that_cannot_interrupt_costs_the_session(
    autojump_clock: trio.abc.Clock,
) -> None:
    async def base_only(agent: FakeAgent, jail: FakeJail) -> None:
        await agent.be_ready([])
        while True:
            await agent.receive()

    async with bench(base_only) as it:
        execution = it.submit("x")
        await trio.testing.wait_all_tasks_blocked()
        execution.interrupt()
        with pytest.raises(SessionEndedError, match="only be stopped as a whole"):
            await execution.wait()


async def test_the_time_limit_of_an_agent_that_knows_none_costs_the_session(
    autojump_clock: trio.abc.Clock,
) -> None:
    async def older(agent: FakeAgent, jail: FakeJail) -> None:
        await agent.send({"type": "ready"})
        while True:
            frame = await agent.receive()
            if frame["code"] != "wait":
                await agent.answer(frame, stdout=frame["code"])

    async with bench(older) as it:
        assert (await it.submit("x", timeout_s=5).wait()).outcome.stdout == "x"
        await trio.sleep(7)  # its limit is its own, not its successor's
        start = trio.current_time()
        running, waiting = it.submit("wait", timeout_s=5), it.submit("y")
        outcome = (await running.wait()).outcome
        assert trio.current_time() - start == pytest.approx(5)
        assert outcome.timed_out
        assert outcome.interpreter_restarted
        assert outcome.exit_code == 124
        assert outcome.restart_reason.startswith("its code ran longer than 5 s")
        with pytest.raises(SessionEndedError, match="can only be stopped as a whole"):
            await waiting.wait()
        await it.session.wait_ended()
        assert it.jail.killed


async def test_an_agent_that_says_nothing_of_itself_does_without_what_it_does_not_offer(
    autojump_clock: trio.abc.Clock,
) -> None:
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
        assert "build that anew" in error.value.hint
        await trio.sleep(TENANCY.idle_timeout_s + 1)
        assert it.session.end_reason == "idle timeout"
    assert seen == ["execute"]


async def test_an_agent_of_the_future_is_used_as_far_as_it_is_understood(
    autojump_clock: trio.abc.Clock,
) -> None:
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


async def test_output_that_nobody_has_room_for_is_shortened(
    autojump_clock: trio.abc.Clock,
) -> None:
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


async def test_an_agent_that_begins_with_something_else_has_not_started(
    autojump_clock: trio.abc.Clock,
) -> None:
    async def garbage(agent: FakeAgent, jail: FakeJail) -> None:
        jail.words = "Welcome to my shell"
        await agent.send_raw(b"Welcome!\n")
        await trio.sleep_forever()

    async with bench(garbage) as it:
        with pytest.raises(StartFailedError, match=r"no agent says .* Welcome to my shell"):
            await it.submit("x").wait()


async def test_an_agent_that_does_not_answer_is_given_up(autojump_clock: trio.abc.Clock) -> None:
    async def mute(agent: FakeAgent, jail: FakeJail) -> None:
        await agent.be_ready()
        await trio.sleep_forever()

    async with bench(mute, limits=SessionLimits(grace_s=2)) as it:
        start = trio.current_time()
        with pytest.raises(SessionEndedError, match="did not answer in time"):
            await it.submit("x", timeout_s=5).wait()
        assert trio.current_time() - start == pytest.approx(5 + 2 + ANSWER_MARGIN_S)


async def test_an_agent_that_never_gets_ready(autojump_clock: trio.abc.Clock) -> None:
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


async def test_a_jail_that_dies_before_it_is_ready_says_why(
    autojump_clock: trio.abc.Clock,
) -> None:
    async def stillborn(agent: FakeAgent, jail: FakeJail) -> None:
        jail.words = "bwrap: No permissions"

    async with bench(stillborn) as it:
        with pytest.raises(StartFailedError, match="bwrap: No permissions"):
            await it.submit("x").wait()


async def test_a_launcher_that_fails_fails_what_waits(autojump_clock: trio.abc.Clock) -> None:
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
async def test_garbage_from_a_jail_ends_that_session_with_the_reason(
    data: bytes, autojump_clock: trio.abc.Clock
) -> None:
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


async def test_an_error_frame_answers_its_execution(autojump_clock: trio.abc.Clock) -> None:
    async def refusing(agent: FakeAgent, jail: FakeJail) -> None:
        await agent.be_ready()
        while True:
            frame = await agent.receive()
            await agent.send({"type": "error", "message": "no such interpreter", "id": frame["id"]})

    async with bench(refusing) as it:
        with pytest.raises(InternalError, match="no such interpreter"):
            await it.submit("x").wait()
        with pytest.raises(InternalError, match="no such interpreter"):
            await it.submit("y").wait()


async def test_an_idle_session_ends_after_its_limit(autojump_clock: trio.abc.Clock) -> None:
    async with bench() as it:
        await it.submit("x").wait()
        start = trio.current_time()
        await it.session.wait_ended()
        assert trio.current_time() - start == pytest.approx(TENANCY.idle_timeout_s)
        assert it.session.end_reason == "idle timeout"


async def test_background_processes_keep_a_session(autojump_clock: trio.abc.Clock) -> None:
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


async def test_using_a_session_starts_its_idle_time_anew(autojump_clock: trio.abc.Clock) -> None:
    async with bench() as it:
        for _ in range(5):
            await trio.sleep(90)
            await it.submit("x").wait()
        assert it.session.state is State.IDLE


async def test_a_running_execution_is_not_idle(autojump_clock: trio.abc.Clock) -> None:
    async with bench() as it:
        it.submit("wait", timeout_s=500)
        await trio.sleep(400)
        assert it.session.state is State.RUNNING


async def test_no_session_outlives_its_lifetime(autojump_clock: trio.abc.Clock) -> None:
    async with bench() as it:
        execution = it.submit("wait", timeout_s=5000)
        with pytest.raises(SessionEndedError, match="lifetime limit"):
            await execution.wait()
        assert trio.current_time() - it.session.created_s == pytest.approx(1000)


async def test_a_spare_waits_without_limit(autojump_clock: trio.abc.Clock) -> None:
    async with bench(tenancy=None) as it:
        await trio.sleep(10_000)
        assert it.session.state is State.IDLE
        it.session.claim(TENANCY)
        await it.session.wait_ended()
        assert it.session.end_reason == "idle timeout"


async def test_a_one_shot_ends_with_its_answer(autojump_clock: trio.abc.Clock) -> None:
    async with bench() as it:
        assert (await it.submit("x", one_shot=True).wait()).outcome.stdout == "x"
        await it.session.wait_ended()
        assert it.jail.killed


async def test_a_one_shot_that_is_interrupted_while_it_starts_is_ended(
    autojump_clock: trio.abc.Clock,
) -> None:
    async with bench() as it:
        execution = it.submit("x", one_shot=True)
        assert it.session.state is State.STARTING
        execution.interrupt()
        assert (await execution.wait()).outcome.interrupted
        start = trio.current_time()
        await it.session.wait_ended()
        assert trio.current_time() == start


async def test_an_abandoned_one_shot_is_ended_and_a_named_one_goes_on(
    autojump_clock: trio.abc.Clock,
) -> None:
    async with bench() as it:
        execution = it.submit("wait")
        await trio.testing.wait_all_tasks_blocked()
        execution.abandon()
        await trio.testing.wait_all_tasks_blocked()
        assert it.session.state is State.RUNNING
        execution.interrupt()
        await execution.wait()
        it.submit("wait", one_shot=True).abandon()
        await it.session.wait_ended()


async def test_ending_a_session_fails_what_runs_and_waits(autojump_clock: trio.abc.Clock) -> None:
    async with bench() as it:
        executions = [it.submit("wait"), it.submit("b")]
        await trio.testing.wait_all_tasks_blocked()
        it.session.end("killed by nsm")
        for execution in executions:
            with pytest.raises(SessionEndedError, match="killed by nsm"):
                await execution.wait()
        with pytest.raises(SessionEndedError):
            it.submit("late")


async def test_an_error_that_is_remembered_holds_nothing_of_those_who_were_told_it(
    autojump_clock: trio.abc.Clock,
) -> None:
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


async def test_a_dead_jail_ends_its_session(autojump_clock: trio.abc.Clock) -> None:
    async with bench() as it:
        execution = it.submit("wait")
        await trio.testing.wait_all_tasks_blocked()
        it.jail.kill()
        with pytest.raises(SessionEndedError, match="jail died"):
            await execution.wait()
        await it.session.wait_ended()


async def test_an_agent_that_lets_go_of_its_channel_and_lives(
    autojump_clock: trio.abc.Clock,
) -> None:
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


async def test_shutdown_answers_everybody(autojump_clock: trio.abc.Clock) -> None:
    async with bench() as it:
        execution = it.submit("wait")
        await trio.testing.wait_all_tasks_blocked()
    with pytest.raises(SessionEndedError, match="shutting down"):
        await execution.wait()


async def test_an_agent_that_reads_late_gets_all(autojump_clock: trio.abc.Clock) -> None:
    """What its socket does not take at once waits in the supervisor."""

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


async def test_a_session_ends_while_its_agent_reads_nothing(
    autojump_clock: trio.abc.Clock,
) -> None:
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


async def test_a_session_is_one_task(autojump_clock: trio.abc.Clock) -> None:
    """There are a thousand, and each task takes the supervisor some 4 KiB."""
    before = trio.lowlevel.current_statistics().tasks_living
    async with bench() as it:
        await it.submit("x").wait()
        await trio.testing.wait_all_tasks_blocked()
        others = 2  # the fake agent and the timers that all sessions share
        assert trio.lowlevel.current_statistics().tasks_living - before == 1 + others


@pytest.mark.parametrize("number", [errno.EMFILE, errno.EAGAIN, errno.ENOMEM])
async def test_no_room_for_a_jail_is_told_and_costs_nobody_else(
    number: int, autojump_clock: trio.abc.Clock
) -> None:
    async with bench() as it:
        await it.submit("x").wait()

        class Full:
            async def prepare(self, spec: JailSpec) -> None:
                del spec

            async def launch(self, spec: JailSpec) -> FakeJail:
                raise OSError(number, os.strerror(number))

        async with trio.open_nursery() as nursery:
            other = Bench(it.launcher, SessionLimits(), nursery, launching=Full())
            execution = other.submit("x")
            nursery.start_soon(other.session.run)
            with pytest.raises(StartFailedError, match=os.strerror(number)) as error:
                await execution.wait()
            assert "ulimit" in error.value.hint
            await other.session.wait_ended()
            nursery.cancel_scope.cancel()
        assert (await it.submit("y").wait()).outcome.stdout == "y"


async def test_a_fault_of_ours_costs_one_session(
    autojump_clock: trio.abc.Clock, caplog: pytest.LogCaptureFixture
) -> None:
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
