"""People who join a session: transcripts, code in it, completion, checks."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import pytest
import trio
import trio.testing

from control_bench import Bench, Peer, bench
from nsm.wire import transcripts
from nsm.wire.errors import NsmError, SessionEndedError
from nsm.wire.messages import Cancel, Event
from nsm.wire.transcripts import ExecutionEnd, ExecutionStart, OutputPiece, SessionStart
from virtual_time import virtual_time

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from fakes import FakeAgent, FakeJail
    from nsm.wire.transcripts import Entry

pytestmark = virtual_time


def entries(events: Sequence[Event]) -> list[Entry]:
    """Convert events to entries as a client does."""
    found = [transcripts.entry(event.event, event.data) for event in events]
    return [entry for entry in found if entry is not None]


async def logs(peer: Peer, target: str, **args: Any) -> tuple[list[Entry], dict[str, Any]]:
    peer.events.clear()
    end = await peer.call("logs", target=target, **args)
    return entries(peer.events), end


async def next_entry(peer: Peer) -> Entry:
    message = await peer.next()
    assert isinstance(message, Event)
    (entry,) = entries([message])
    return entry


class Typing:
    """An agent whose executions print what the test says, when it says so."""

    def __init__(self) -> None:
        self.frames: list[Mapping[str, Any]] = []
        self.agent: FakeAgent | None = None

    async def __call__(self, agent: FakeAgent, jail: FakeJail) -> None:
        del jail
        self.agent = agent
        await agent.be_ready()
        while True:
            self.frames.append(await agent.receive())

    async def say(self, text: str) -> None:
        assert self.agent is not None
        frame = {"type": "output", "id": self._running["id"], "stream": "stdout", "text": text}
        await self.agent.send(frame)

    async def answer(self, **fields: Any) -> None:
        assert self.agent is not None
        await self.agent.answer(self._running, **fields)

    @property
    def _running(self) -> Mapping[str, Any]:
        return [frame for frame in self.frames if frame["type"] == "execute"][-1]


# Transcripts


async def test_a_session_that_does_not_start_has_a_transcript() -> None:
    async def stillborn(agent: FakeAgent, jail: FakeJail) -> None:
        jail.words = "bwrap: No permissions"

    async with bench(stillborn) as it:
        peer = await it.connect()
        with pytest.raises(NsmError, match="No permissions"):
            await peer.call("run", env="python", code="x", session="a")
        found, end = await logs(peer, "a")
        assert "No permissions" in end["end_reason"]
        assert isinstance(found[-1], ExecutionEnd)
        assert found[-1].error is not None
        assert found[-1].error.code == "start-failed"


async def test_code_that_ends_in_the_queue_is_in_the_transcript() -> None:
    async with bench() as it:
        peer, other = await it.connect(), await it.connect()
        await peer.start("run", env="python", code="wait", session="a")
        await trio.testing.wait_all_tasks_blocked()
        queued = await other.start("run", env="python", code="queued", session="a")
        await trio.testing.wait_all_tasks_blocked()
        await other.send(Cancel(queued))
        await other.answer(queued)
        await peer.start("run", env="python", code="doomed", session="a")
        await trio.testing.wait_all_tasks_blocked()
        it.run_service.find("a").end("test")
        await trio.testing.wait_all_tasks_blocked()
        found, _ = await logs(other, "a")
        ends = [entry for entry in found if isinstance(entry, ExecutionEnd)]
        starts = [entry for entry in found if isinstance(entry, ExecutionStart)]
        assert [start.code for start in starts] == ["wait", "queued", "doomed"]
        assert ends[1].interrupted
        assert isinstance(ends[0].error, SessionEndedError)
        assert isinstance(ends[2].error, SessionEndedError)


async def test_a_follower_sees_output_as_it_comes() -> None:
    typing = Typing()
    async with bench(typing) as it:
        peer, follower = await it.connect(), await it.connect()
        running = await peer.start("run", env="python", code="first", session="a")
        await trio.testing.wait_all_tasks_blocked()
        assert typing.frames[-1]["stream"] is False
        following = await follower.start("logs", target="a", follow=True)
        assert isinstance(await next_entry(follower), SessionStart)
        assert isinstance(await next_entry(follower), ExecutionStart)
        # One that runs already begins to stream ...
        await trio.testing.wait_all_tasks_blocked()  # the agent and the follower are told apart
        assert typing.frames[-1] == {"type": "stream", "id": typing.frames[-2]["id"]}
        await typing.say("a")
        entry = await next_entry(follower)
        assert isinstance(entry, OutputPiece)
        assert entry.text == "a"
        await typing.answer(stdout="ab")
        assert (await peer.answer(running))["stdout"] == "ab"
        entry = await next_entry(follower)
        assert isinstance(entry, OutputPiece)
        assert entry.text == "b"
        assert isinstance(await next_entry(follower), ExecutionEnd)
        # ... the next one streams from its beginning, and for the follower alone.
        running = await peer.start("run", env="python", code="second", session="a")
        assert isinstance(await next_entry(follower), ExecutionStart)
        await trio.testing.wait_all_tasks_blocked()
        assert typing.frames[-1]["stream"] is True
        await typing.say("c")
        assert isinstance(await next_entry(follower), OutputPiece)
        await typing.answer(stdout="c")
        await peer.answer(running)
        assert peer.events == []
        assert isinstance(await next_entry(follower), ExecutionEnd)
        # It ends when asked to, and then nothing streams any more.
        await follower.send(Cancel(following))
        end = await follower.answer(following)
        assert (end["state"], end["executions"]) == ("idle", 2)
        await peer.start("run", env="python", code="third", session="a")
        await trio.testing.wait_all_tasks_blocked()
        assert typing.frames[-1]["stream"] is False


async def test_followers_that_do_not_read_hold_nobody_up() -> None:
    typing = Typing()
    async with bench(typing) as it:
        peer = await it.connect()
        running = await peer.start("run", env="python", code="x", session="a")
        deaf = [await it.connect() for _ in range(20)]
        for follower in deaf:
            await follower.start("logs", target="a", follow=True)
        await trio.testing.wait_all_tasks_blocked()
        for _ in range(100):
            await typing.say("x" * 65536)
        await typing.answer(stdout="done")
        assert (await peer.answer(running))["stdout"] == "done"
        # Each has its own place; a reader that wakes up is told what it has missed.
        missed = seen = 0
        while not isinstance(entry := await next_entry(deaf[0]), ExecutionEnd):
            if isinstance(entry, OutputPiece):
                missed += entry.skipped
                seen += len(entry.text)
        assert seen + missed == 100 * 65536 + len("done")
        assert missed > 50 * 65536


async def test_followers_that_vanish_are_forgotten() -> None:
    typing = Typing()
    async with bench(typing) as it:
        peer, follower = await it.connect(), await it.connect()
        await peer.start("run", env="python", code="x", session="a")
        await trio.testing.wait_all_tasks_blocked()
        await follower.start("logs", target="a", follow=True)
        await trio.testing.wait_all_tasks_blocked()
        session = it.run_service.find("a")
        assert session.transcript.followers == 1
        await follower.stream.aclose()
        await trio.testing.wait_all_tasks_blocked()
        assert session.transcript.followers == 0


# Code of others


async def test_joining_code_is_interrupted_by_its_own_client_only() -> None:
    async with bench() as it:
        peer, joiner = await it.connect(), await it.connect()
        await peer.call("run", env="python", code="x", session="a")
        joining = await joiner.start("run_in", target="a", code="wait")
        await trio.testing.wait_all_tasks_blocked()
        await joiner.send(Cancel(joining))
        assert (await joiner.answer(joining))["interrupted"]
        # Who leaves takes nothing along.
        await joiner.start("run_in", target="a", code="wait")
        await trio.testing.wait_all_tasks_blocked()
        await joiner.stream.aclose()
        await trio.testing.wait_all_tasks_blocked()
        assert it.run_service.find("a").state.value == "running"


# What a prompt asks

COMPLETIONS = {"type": "completions", "start": 0, "end": 2, "matches": ["print"], "available": True}
CHECKED = {"type": "checked", "status": "incomplete", "indent": "    "}
COMPLETE = {"target": "a", "code": "pr", "cursor": 2}


async def answering(
    agent: FakeAgent, jail: FakeJail, *, answers: Sequence[Mapping[str, Any]] = ()
) -> None:
    """Answers executions, and each request with the next of the answers; then no more."""
    del jail
    await agent.be_ready()
    left = list(answers)
    while True:
        frame = await agent.receive()
        if frame["type"] == "execute":
            await agent.answer(frame, stdout=frame["code"])
        elif left:
            await agent.send({"id": frame["id"], **left.pop(0)})


async def prompt(it: Bench) -> Peer:
    """A client, and a session `a` to join."""
    peer = await it.connect()
    await peer.call("run", env="python", code="x", session="a")
    return peer


async def test_an_agent_that_does_not_answer_a_prompt() -> None:
    async with bench(answering) as it:
        peer = await prompt(it)
        assert not (await peer.call("complete", **COMPLETE))["available"]
        assert (await peer.call("check", target="a", code="x"))["status"] == "unknown"
        assert (await peer.call("run_in", target="a", code="fine"))["stdout"] == "fine"


async def test_a_place_outside_of_the_code_is_no_completion() -> None:
    async with bench(partial(answering, answers=[COMPLETIONS | {"end": 3}])) as it:
        peer = await prompt(it)
        answer = await peer.call("complete", **COMPLETE)
        assert answer == {"start": 2, "end": 2, "matches": [], "available": False}


@pytest.mark.parametrize("late", [COMPLETIONS, CHECKED, {"type": "file_error", "message": "x"}])
async def test_answers_that_nobody_waits_for_are_passed_over(late: Mapping[str, Any]) -> None:
    answers = [{"id": "q99", **late}, COMPLETIONS]
    async with bench(partial(answering, answers=answers)) as it:
        peer = await prompt(it)
        assert not (await peer.call("complete", **COMPLETE))["available"]
        assert (await peer.call("complete", **COMPLETE))["available"]


async def test_an_answer_to_something_else_ends_that_session() -> None:
    async with bench(partial(answering, answers=[CHECKED])) as it:
        peer = await prompt(it)
        await peer.call("run", env="bash", code="x", session="b")
        with pytest.raises(SessionEndedError, match="broke the protocol"):
            await peer.call("complete", **COMPLETE)
        assert [s.name for s in it.run_service.live_sessions()] == ["b"]


async def test_an_agent_that_refuses_says_why() -> None:
    answers = [{"type": "error", "message": "unknown type"}]
    async with bench(partial(answering, answers=answers)) as it:
        peer = await prompt(it)
        with pytest.raises(NsmError, match="refused: unknown type"):
            await peer.call("complete", **COMPLETE)


async def test_an_older_agent_is_told_apart() -> None:
    async def old(agent: FakeAgent, jail: FakeJail) -> None:
        await agent.be_ready([])
        await agent.answer(await agent.receive())
        await agent.receive()

    async with bench(old) as it:
        peer = await prompt(it)
        for op, args in (
            ("complete", COMPLETE),
            ("check", {"target": "a", "code": "x"}),
            ("file_open", {"target": "a", "path": "x", "mode": "read"}),
        ):
            with pytest.raises(NsmError, match="too old") as error:
                await peer.call(op, **args)
            assert error.value.code == "unknown-operation"


async def test_a_session_that_ends_while_a_prompt_asks() -> None:
    async with bench(answering) as it:
        peer = await prompt(it)
        asking = await peer.start("complete", **COMPLETE)
        await trio.testing.wait_all_tasks_blocked()
        it.run_service.find("a").end("test")
        with pytest.raises(SessionEndedError, match="test"):
            await peer.answer(asking)


async def test_asking_a_session_that_still_starts_waits_for_it() -> None:
    async def slow(agent: FakeAgent, jail: FakeJail) -> None:
        await trio.sleep(3)
        await answering(agent, jail, answers=[CHECKED])

    async with bench(slow) as it:
        peer, other = await it.connect(), await it.connect()
        running = await peer.start("run", env="python", code="x", session="a")
        await trio.testing.wait_all_tasks_blocked()
        assert (await other.call("check", target="a", code="if x:"))["status"] == "incomplete"
        assert (await peer.answer(running))["exit_code"] == 0


# What is refused
