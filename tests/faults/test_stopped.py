"""The supervisor, or all of nsm, stops for minutes: SIGSTOP, a frozen container, a debugger.

Time is virtual: nothing runs while it jumps, as nothing does in a process that is stopped.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import trio
import trio.testing

from control_bench import bench
from nsmd.timer import CAUGHT_UP_S
from sandbox_agent import encode_frame

if TYPE_CHECKING:
    from collections.abc import Mapping

    from fakes import FakeAgent, FakeJail

MINUTES_S = 600.0


class Hand:
    """An agent that does what the test says."""

    def __init__(self) -> None:
        self.frames: list[Mapping[str, Any]] = []
        self.jail: FakeJail | None = None
        self._sent = 0

    async def __call__(self, agent: FakeAgent, jail: FakeJail) -> None:
        self.jail = jail
        await agent.be_ready()
        while True:
            self.frames.append(await agent.receive())

    def say(self, **frame: Any) -> None:
        """Send a frame while everybody else is stopped."""
        assert self.jail is not None
        self._sent += 1
        self.jail.agent_end.send(encode_frame({**frame, "seq": self._sent}))

    def result(self, stdout: str, **fields: Any) -> None:
        answer = {"type": "result", "id": self.frames[0]["id"], "stdout": stdout, "stderr": ""}
        self.say(**answer, exit_code=0, **fields)


async def test_an_answer_that_came_meanwhile_counts(mock_clock: trio.testing.MockClock) -> None:
    hand = Hand()
    async with bench(hand) as it:
        peer = await it.connect()
        running = await peer.start("run", env="python", code="x", session="a")
        await trio.testing.wait_all_tasks_blocked()
        hand.result("done")
        mock_clock.jump(MINUTES_S)  # far beyond the time limit
        assert (await peer.answer(running))["stdout"] == "done"
        mock_clock.jump(CAUGHT_UP_S)
        await trio.testing.wait_all_tasks_blocked()
        assert it.registry.find("a").state.value == "idle"


async def test_agents_that_were_stopped_too_have_time_to_say_what_became_of_it(
    mock_clock: trio.testing.MockClock,
) -> None:
    hand = Hand()
    async with bench(hand) as it:
        peer = await it.connect()
        running = await peer.start("run", env="python", code="x", session="a")
        await trio.testing.wait_all_tasks_blocked()
        mock_clock.jump(MINUTES_S)
        await trio.testing.wait_all_tasks_blocked()
        mock_clock.jump(CAUGHT_UP_S - 1)
        await trio.testing.wait_all_tasks_blocked()
        hand.result("so far", timed_out=True)
        assert (await peer.answer(running))["timed_out"]
        mock_clock.jump(1)
        await trio.testing.wait_all_tasks_blocked()
        assert it.registry.find("a").state.value == "idle"


async def test_an_agent_that_stays_silent_is_given_up_after_that(
    mock_clock: trio.testing.MockClock,
) -> None:
    async with bench(Hand()) as it:
        peer = await it.connect()
        await peer.start("run", env="python", code="x", session="a")
        await trio.testing.wait_all_tasks_blocked()
        session = it.registry.find("a")
        mock_clock.jump(MINUTES_S)
        await trio.testing.wait_all_tasks_blocked()
        assert session.live
        mock_clock.jump(CAUGHT_UP_S)
        await trio.testing.wait_all_tasks_blocked()
        assert session.end_reason == "its agent did not answer in time"


async def test_idle_sessions_are_asked_before_they_end(
    mock_clock: trio.testing.MockClock,
) -> None:
    """Their idle time goes on while the supervisor is stopped; whoever comes first keeps them."""
    hand = Hand()
    async with bench(hand, idle_timeout_s=300) as it:
        peer = await it.connect()
        running = await peer.start("run", env="python", code="x", session="a")
        await trio.testing.wait_all_tasks_blocked()
        hand.result("1")
        await peer.answer(running)
        mock_clock.jump(MINUTES_S)
        again = await peer.start("run", env="python", code="y", session="a")
        await trio.testing.wait_all_tasks_blocked()
        mock_clock.jump(CAUGHT_UP_S)
        await trio.testing.wait_all_tasks_blocked()
        hand.frames.pop(0)
        hand.result("2")
        answer = await peer.answer(again)
        assert (answer["stdout"], answer["session"]["created"]) == ("2", False)
