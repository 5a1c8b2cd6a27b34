"""Executions of one session, with a scripted agent: order, answers, time. Time is virtual."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import trio
import trio.testing

from fakes import FakeAgent, FakeJail
from nsm.wire.errors import BadRequestError, InternalError, SessionEndedError, UnknownOperationError
from nsmd.model.lifecycle import SessionState
from nsmd.model.values import SessionLimits
from nsmd.sessions.agent_session import ANSWER_MARGIN_S
from processes import go_on, stopped
from sandbox.framing import CAPABILITIES
from sessionbench import bench
from virtual_time import virtual_time

if TYPE_CHECKING:
    from collections.abc import Mapping

pytestmark = virtual_time


async def test_a_late_or_foreign_result_is_never_taken_for_an_answer() -> None:
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
async def test_an_answer_to_nothing_is_ignored(kind: str) -> None:
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
        assert it.session.state is SessionState.IDLE


async def test_interrupting_what_runs_and_what_waits() -> None:
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
        assert it.session.runs.interrupt() is False
        assert (await it.submit("after").wait()).outcome.stdout == "after"


@pytest.mark.parametrize(
    ("first", "second", "told_again"),
    [
        ({"exit_code": 137}, {}, False),
        ({"exit_code": 137}, {"exit_code": 1}, False),  # else its own variables seem to be lost
        ({"exit_code": 130, "interrupted": True}, {}, True),  # nobody reads that answer
        ({"exit_code": 137, "restart_reason": "another"}, {}, True),
    ],
)
async def test_why_state_was_lost_is_told_once(
    first: dict[str, Any], second: dict[str, Any], told_again: bool
) -> None:
    lost: dict[str, Any] = {"interpreter_restarted": True, "restart_reason": "it was killed"}

    async def restarting(agent: FakeAgent, jail: FakeJail) -> None:
        await agent.be_ready()
        await agent.answer(await agent.receive(), **lost | first)
        await agent.answer(await agent.receive(), **lost | second)

    async with bench(restarting) as it:
        outcome = (await it.submit("x").wait()).outcome
        assert outcome.interpreter_restarted
        outcome = (await it.submit("y").wait()).outcome
        assert outcome.interpreter_restarted is told_again
        assert outcome.restart_reason == ("it was killed" if told_again else "")


async def test_an_agent_that_cannot_interrupt_costs_the_session() -> None:
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


async def test_the_time_limit_of_an_agent_that_knows_none_costs_the_session() -> None:
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


async def test_an_agent_that_does_not_answer_is_given_up() -> None:
    async def mute(agent: FakeAgent, jail: FakeJail) -> None:
        await agent.be_ready()
        await trio.sleep_forever()

    async with bench(mute, limits=SessionLimits(grace_s=2)) as it:
        start = trio.current_time()
        with pytest.raises(SessionEndedError, match="did not answer in time"):
            await it.submit("x", timeout_s=5).wait()
        assert trio.current_time() - start == pytest.approx(5 + 2 + 2 * ANSWER_MARGIN_S)


async def test_an_agent_that_is_stopped_is_waited_for() -> None:
    going_on = trio.Event()

    async def halting(agent: FakeAgent, jail: FakeJail) -> None:
        jail.pid = process.pid
        await agent.be_ready()
        frame = await agent.receive()
        await going_on.wait()
        await trio.sleep(ANSWER_MARGIN_S - 1)  # the code was out of time, and had to be stopped
        await agent.answer(frame, stdout="1", timed_out=True)
        await trio.sleep_forever()

    with stopped() as process:
        async with bench(halting, limits=SessionLimits(grace_s=2)) as it:
            running = it.submit("x", timeout_s=5)
            await trio.sleep(500)
            assert not running.done
            go_on(process)
            going_on.set()
            assert (await running.wait()).outcome.timed_out
            waiting = it.submit("y", timeout_s=5)
            with pytest.raises(SessionEndedError, match="did not answer in time"):
                await waiting.wait()


async def test_an_error_frame_answers_its_execution() -> None:
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


async def test_code_with_input_is_not_run_by_an_older_agent() -> None:
    async def older(agent: FakeAgent, jail: FakeJail) -> None:
        await agent.be_ready([each for each in CAPABILITIES if each != "execute.stdin"])
        while True:
            frame = await agent.receive()
            await agent.answer(frame, stdout=frame["code"])

    async with bench(older) as it:
        refused, after = it.submit("x", stdin=True), it.submit("y")
        with pytest.raises(UnknownOperationError, match="too old to give code standard input"):
            await refused.wait()
        assert (await after.wait()).outcome.stdout == "y"


async def test_input_is_passed_on_while_code_runs() -> None:
    frames: list[Any] = []

    async def reads(agent: FakeAgent, jail: FakeJail) -> None:
        await agent.be_ready(list(CAPABILITIES))
        running: Mapping[str, Any] = {}
        while True:
            frame = await agent.receive()
            if frame["type"] == "execute":
                running = frame
                continue
            frames.append(frame)
            ended = frame["execution"] != running.get("id")
            answer = {"type": "input_taken", "id": frame["id"], "offset": 5}
            await agent.send({**answer, "open": not (ended or frame["eof"])})
            if frame["eof"]:
                await agent.answer(running)
                running = {}

    async with bench(reads) as it:
        session = it.session
        first, second = it.submit("x", stdin=True), it.submit("y")
        assert await session.runs.write_input(first.id, 0, b"12345", eof=False) == (5, True)
        with pytest.raises(BadRequestError, match="has no standard input"):
            await session.runs.write_input(second.id, 0, b"12345", eof=False)
        assert await session.runs.write_input(first.id, 5, b"", eof=True) == (5, False)
        # Reaches the agent if the result is still under way.
        assert await session.runs.write_input(first.id, 5, b"more", eof=False) == (5, False)
        first.abandon()
        assert (await first.wait()).notes == (), "all of its input had been sent"
        assert [frame["data"] for frame in frames][:2] == ["MTIzNDU=", ""]


async def test_the_input_of_code_that_nobody_waits_for_ends() -> None:
    async def reads(agent: FakeAgent, jail: FakeJail) -> None:
        await agent.be_ready(list(CAPABILITIES))
        running = await agent.receive()
        ended = await agent.receive()
        assert (ended["type"], ended["eof"], "offset" in ended) == ("input", True, False)
        await agent.answer(running)
        waiting = await agent.receive()
        assert "stdin" not in waiting
        await agent.answer(waiting)

    async with bench(reads) as it:
        executions = it.submit("x", stdin=True), it.submit("y", stdin=True)
        await trio.testing.wait_all_tasks_blocked()
        for execution in reversed(executions):
            execution.abandon()
        for execution in executions:
            (note,) = (await execution.wait()).notes
            assert note == "the client that sent its standard input was gone before the end of that"
