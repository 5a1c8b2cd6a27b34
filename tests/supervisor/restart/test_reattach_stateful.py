"""An agent's channel that passes from holder to holder, each killed at any moment.

The agent's `Channel` and the supervisor's `AgentLink` are the real ones; all bytes between them go
through the test, which decides when they arrive. What a holder had read dies with it; so does what
it had not written yet.
"""

from __future__ import annotations

import socket
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import trio
import trio.testing
from hypothesis import example, given
from hypothesis import strategies as st

from nsmd.agent_link.frames import OtherFrame, OutputFrame, ResultFrame, ResumedFrame
from nsmd.agent_link.link import AgentLink
from sandbox.framing import RESUMED, resume_marker
from sandbox.polling import Poller
from sandbox.session import Channel

if TYPE_CHECKING:
    from collections.abc import Mapping

    from nsmd.agent_link.frames import AgentFrame

TOKEN = "ff" * 4 + "5a" * 12
"""Token with more of the bytes that a marker begins with."""

CAPABILITIES = frozenset({"sequence", "notes", "interrupt"})

BUFFER = 4096
"""Size of the agent's socket buffer: frames are torn there."""

EVERYTHING = 1 << 30

Amount = st.sampled_from([1, 3, 19, 21, 60, 500, 5000, EVERYTHING, EVERYTHING])
Step = st.one_of(
    st.tuples(st.just("to the agent"), Amount),
    st.tuples(st.just("to the holder"), Amount),
    st.tuples(st.just("say"), st.sampled_from([1, 100, 3000, 20_000])),
    st.tuples(st.just("finish"), st.just(0)),
    st.tuples(st.just("execute"), st.just(0)),
    st.tuples(st.just("die"), st.sampled_from([0, 1, 16, 30, 62, 70, 78, EVERYTHING])),
)


class Agent:
    """Agent that does little, over a real channel.

    Attributes:
        said: every numbered frame, in order.
        acknowledged: how many of them were.
        answer: what it said first to the last marker.
        answered_from: the first of the frames that it repeated then.
        executed: ids, in order.
    """

    def __init__(self) -> None:
        ours, self.far = socket.socketpair()
        ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, BUFFER)
        self.far.setblocking(False)
        self.poller = Poller()
        self._socket = ours
        self.channel = Channel(
            self.poller, ours.fileno(), ours.fileno(), self._take, self._end, lambda: None
        )
        self.channel.begin_sequence(resume_marker(TOKEN))
        self.said: list[dict[str, Any]] = []
        self.answer: dict[str, Any] = {}
        self.acknowledged = 0
        self.answered_from = 0
        self.executed: list[str] = []
        self.running: str | None = None

    def turn(self) -> None:
        self.poller.at("now", 0.0, lambda: None)
        self.poller.turn()

    def say(self, frame: dict[str, Any]) -> None:
        self.said.append(frame)
        self.channel.send(frame)

    def print(self, size: int) -> None:
        if self.running is not None and self.channel.lag_bytes < 100_000:
            text = f"{len(self.said)} ".ljust(size, "x")
            self.say({"type": "output", "id": self.running, "stream": "stdout", "text": text})

    def finish(self) -> None:
        if self.running is not None:
            execution, self.running = self.running, None
            texts = {"stdout": execution, "stderr": ""}
            self.say({"type": "result", "id": execution, **texts, "exit_code": 0})

    def close(self) -> None:
        self._socket.close()
        self.far.close()

    def _end(self) -> None:
        raise AssertionError("the agent would have ended the session")

    def _take(self, message: Mapping[str, Any]) -> None:
        if message is RESUMED:
            states = dict.fromkeys(self.channel.kept_results, "finished")
            if self.running is not None:
                states[self.running] = "running"
            self.answer = {
                "type": "resumed",
                "executions": states,
                "files": [],
                "recent": list(self.channel.recent),
                "count": len(self.executed),
            }
            self.answered_from = self.acknowledged
            self.channel.resume(self.answer)
            return
        assert message["type"] in {"execute", "ack", "interrupt"}, message
        if "ack" in message or message["type"] == "ack":
            self.acknowledged = message.get("ack", message.get("seq"))
            self.channel.acknowledge(self.acknowledged)
        if message["type"] == "execute":
            assert self.running is None
            self.running = message["id"]
            self.executed.append(message["id"])
        elif message["type"] == "interrupt":
            self.say({"type": "idle", "id": message["id"]})


class Holder:
    """One supervisor's end of the channel.

    Attributes:
        resumed: None before the agent has answered.
        frames: what came after that.
    """

    def __init__(self, nursery: trio.Nursery, count: int) -> None:
        ours, self.far = socket.socketpair()
        for each in (ours, self.far):
            each.setblocking(False)
            each.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 20)
        self._socket = ours
        self.count = count
        self.link = AgentLink(ours, nursery)
        self.resumed: ResumedFrame | None = None
        self.frames: list[AgentFrame] = []
        self.busy = True
        self._scope = trio.CancelScope()
        nursery.start_soon(self._run)

    async def _run(self) -> None:
        with self._scope:
            self.resumed = await self.link.resume(bytes.fromhex(TOKEN), CAPABILITIES)
            self.busy = any(each.runs for each in self.resumed.executions)
            while True:
                frame = await self.link.receive()
                self.frames.append(frame)
                if isinstance(frame, ResultFrame):
                    self.busy = False

    def execute(self, execution: str) -> None:
        self.busy = True
        self.link.post({"type": "execute", "id": execution, "code": "é" * 50})

    async def die(self) -> None:
        self._scope.cancel()
        await trio.testing.wait_all_tasks_blocked()
        self.link.close()
        self._socket.close()
        self.far.close()


class World:
    """The agent, the holder of the moment, and what is on the way between them."""

    def __init__(self, nursery: trio.Nursery) -> None:
        self.agent = Agent()
        self.to_agent = bytearray()
        self.to_holder = bytearray()
        self._nursery = nursery
        self.holder = Holder(nursery, 0)
        self._executions = 0
        self._received = 0  # of the agent's frames, by any holder

    async def do(self, what: str, amount: int) -> None:
        if what == "say":
            self.agent.print(amount)
        elif what == "finish":
            self.agent.finish()
        elif what == "execute":
            if self.holder.resumed is not None and not self.holder.busy:
                self._executions += 1
                self.holder.execute(f"{self._executions}.x")
        elif what == "die":
            await self.replace(amount)
        elif what == "to the agent":
            await self.collect()
            self.agent.far.sendall(self.to_agent[:amount])
            del self.to_agent[:amount]
            self.agent.turn()
        else:
            await self.collect()
            with suppress(BlockingIOError):
                sent = self.holder.far.send(self.to_holder[: min(amount, 100_000)])
                del self.to_holder[:sent]
            await trio.testing.wait_all_tasks_blocked()
            self.check()

    async def collect(self) -> None:
        """Move what both have written onto the channel."""
        await trio.testing.wait_all_tasks_blocked()
        for _ in range(100):
            with suppress(BlockingIOError):
                self.to_agent += self.holder.far.recv(1 << 20)
            before = len(self.to_holder)
            with suppress(BlockingIOError):
                self.to_holder += self.agent.far.recv(1 << 20)
            if len(self.to_holder) == before:
                return
            if self.agent.channel.lag_bytes:
                self.agent.turn()

    async def replace(self, lost: int) -> None:
        """The holder is killed, with the last bytes of what it had to write, and the next comes."""
        await self.collect()
        del self.to_agent[max(0, len(self.to_agent) - lost) :]
        self.check()
        await self.holder.die()
        self.holder = Holder(self._nursery, self.holder.count + 1)

    async def settle(self) -> None:
        """Everything arrives."""
        quiet = 0
        while quiet < 3:
            before = len(self.agent.said), len(self.holder.frames), self.holder.resumed
            await self.do("to the agent", EVERYTHING)
            await self.do("to the holder", EVERYTHING)
            still = before == (len(self.agent.said), len(self.holder.frames), self.holder.resumed)
            quiet = quiet + 1 if still and not self.to_agent and not self.to_holder else 0

    def check(self) -> None:
        """Check that the holder received the agent's frames in order, from the first unacknowledged
        one."""
        holder, said = self.holder, self.agent.said
        if holder.resumed is None:
            return
        answer = self.agent.answer
        told = {
            each.id: "running" if each.runs else "finished" for each in holder.resumed.executions
        }
        assert told == answer["executions"]
        assert holder.resumed.count == answer["count"]
        told_now = said[self.agent.answered_from :][: len(holder.frames)]
        for expected, frame in zip(told_now, holder.frames, strict=True):
            match frame:
                case OutputFrame():
                    assert (expected["type"], expected["text"]) == ("output", frame.text)
                case ResultFrame():
                    assert (expected["type"], expected["id"]) == ("result", frame.id)
                case _:
                    assert isinstance(frame, OtherFrame)
                    assert expected["type"] == "idle"
        self._received = max(self._received, self.agent.answered_from + len(holder.frames))
        assert self.agent.acknowledged <= self._received


@given(st.lists(Step, max_size=60))
@example([("die", 0), ("die", 0), ("to the agent", EVERYTHING)])
@example(
    # The second holder begins an execution, and is killed; the agent has heard of none of them.
    [
        ("die", 0),
        ("to the agent", EVERYTHING),
        ("to the holder", EVERYTHING),
        ("to the agent", EVERYTHING),
        ("to the holder", EVERYTHING),
        ("execute", 0),
        ("say", 20_000),
        ("die", 0),
        ("die", 0),
    ]
)
def test_nothing_is_lost_doubled_or_misread(steps: list[tuple[str, int]]) -> None:
    trio.run(_live_through, steps)


async def _live_through(steps: list[tuple[str, int]]) -> None:
    async with trio.open_nursery() as nursery:
        world = World(nursery)
        try:
            for what, amount in steps:
                await world.do(what, amount)
            await world.settle()
            holder, agent = world.holder, world.agent
            assert holder.resumed is not None
            assert agent.answered_from + len(holder.frames) == len(agent.said)
            # What is under way is known, and what is over is answered.
            holder.execute("last") if not holder.busy else agent.finish()
            await world.settle()
            assert not holder.busy or agent.running == "last"
        finally:
            await world.holder.die()
            world.agent.close()
