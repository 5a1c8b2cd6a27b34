"""Sessions that were taken up from an earlier supervisor, against a scripted agent."""

from __future__ import annotations

import time
from contextlib import asynccontextmanager
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import pytest
import trio
import trio.testing

from fake_cgroups import FakeTree
from fakes import CAPABILITIES, FakeAgent, FakeJail, FakeLauncher, Watcher, launching, spec
from nsm.wire.errors import SessionEndedError
from nsm.wire.transcripts import ExecutionStart, SessionStart
from nsmd.host.event_loop import Timers
from nsmd.jail.limits import LimitEnforcer
from nsmd.jail.limits import tree as files
from nsmd.jail.limits.group import Group, limits_of
from nsmd.jail.limits.tree import GroupTree
from nsmd.model.lifecycle import SessionState
from nsmd.model.values import ClientIdentity, NetworkRule, RunRequest, SessionLimits, Tenancy
from nsmd.network.gateway import Gateway
from nsmd.restart.reattach import AT_ONCE, ResumeTurn, ResumeTurns, execution_id_of
from nsmd.sessions.agent_session import RESUME_TIMEOUT_S, Earlier
from nsmd.sessions.execution import Execution, Origin
from nsmd.sessions.session import Session
from nsmd.sessions.transcripts import TranscriptStore
from processes import go_on, stopped
from sandbox.framing import encode_frame, resume_marker
from virtual_time import virtual_time

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping

    from nsmd.agent_link.frames import Noted, ResumedFrame
    from nsmd.jail.limits import LimitEnforcer
    from nsmd.manager.session_manager import SessionManager

    Script = Callable[[FakeAgent], Awaitable[None]]

pytestmark = virtual_time

TOKEN = bytes(range(16))
MARKER = resume_marker(TOKEN.hex())
TENANCY = Tenancy(name="a", scope="s", client="test", idle_timeout_s=100, max_lifetime_s=1000)


class Reviving(Watcher):
    """Makes the executions that an agent tells of."""

    def __init__(self) -> None:
        super().__init__()
        self.executions: dict[str, Execution] = {}
        self.back = trio.Event()

    def session_resumed(self, session: Session, resumed: ResumedFrame) -> None:
        super().session_resumed(session, resumed)
        self.back.set()

    def execution_resumed(self, session: Session, noted: Noted) -> Execution:
        execution = _execution(session, execution_id_of(noted.id), noted.code)
        execution.sent_at = noted.note.get("sent_at")
        self.executions[execution.id] = execution
        return execution


def _execution(session: Session, execution_id: str, code: str) -> Execution:
    return Execution(
        execution_id,
        RunRequest(
            client=ClientIdentity(name="test", scope="s"), env="python", code=code, session="a"
        ),
        Origin(
            env="python",
            created=False,
            replaced=None,
            timeout_s=30,
            clamped_from_s=None,
            one_shot=False,
        ),
        session,
        None,
        lambda _: None,
    )


class Bench:
    """The session, who watches it, and its agent's jail."""

    def __init__(self, session: Session, watcher: Reviving, jail: FakeJail) -> None:
        self.session = session
        self.watcher = watcher
        self.jail = jail
        self._count = 0

    def submit(self, code: str) -> Execution:
        self._count += 1
        execution = _execution(self.session, f"new{self._count}", code)
        self.session.submit(execution)
        return execution

    async def back(self) -> None:
        """Wait until the agent has said what it was in the middle of."""
        with trio.fail_after(1):
            await self.watcher.back.wait()


@asynccontextmanager
async def taken_up(
    script: Script,
    *,
    created_s: float = 0.0,
    enforcer: LimitEnforcer | None = None,
    group: str | None = None,
    earlier: bytes = b"",
    tenancy: Tenancy = TENANCY,
) -> AsyncGenerator[Bench]:
    """A session whose agent follows a script once it is to say what it was in the middle of.

    Args:
        group: directory of its control group, which it is put into.
        earlier: what it still sends to supervisors before this one.
    """

    async def behave(agent: FakeAgent, jail: FakeJail) -> None:
        del jail
        agent.hello = {}  # it was said long ago: frames are numbered
        await agent.take_marker(MARKER)
        question = await agent.receive()
        await agent.send_raw(earlier + resumed())
        await agent.send({"type": "idle", "id": question["id"]})
        await agent.take_marker(MARKER)
        await script(agent)

    async with launching(behave) as launcher, trio.open_nursery() as nursery:
        it = await _bench(launcher, nursery, created_s, enforcer, group, tenancy)
        nursery.start_soon(it.session.run)
        yield it
        nursery.cancel_scope.cancel()
    assert it.session.state is SessionState.ENDED
    assert it.jail.released


async def _bench(
    launcher: FakeLauncher,
    nursery: trio.Nursery,
    created_s: float,
    enforcer: LimitEnforcer | None,
    group: str | None,
    tenancy: Tenancy,
) -> Bench:
    timers, watcher = Timers(), Reviving()
    nursery.start_soon(timers.run)
    jail = await launcher.launch(spec())
    if group is not None:
        files.write_file(group, "cgroup.procs", str(jail.pid))
    session = Session(
        "00000001",
        spec(),
        launcher=launcher,
        limits=SessionLimits(),
        manager=cast("SessionManager", watcher),
        start_limiter=trio.CapacityLimiter(1),
        transcripts=TranscriptStore(),
        gateway=Gateway(),
        timers=timers,
        nursery=nursery,
        enforcer=enforcer,
        earlier=Earlier(
            jail=jail,
            token=TOKEN,
            capabilities=frozenset({*CAPABILITIES, "notes"}),
            group=group,
            listener=None,
            network=NetworkRule(),
            created_s=trio.current_time() - created_s,
            executions=3,
            taken_up=2,
        ),
    )
    session.claim(tenancy)
    return Bench(session, watcher, jail)


def resumed(executions: Mapping[str, str] | None = None, **fields: Any) -> bytes:
    """First frame of an agent."""
    frame: dict[str, Any] = {"type": "resumed", "executions": dict(executions or {}), "files": []}
    frame |= fields
    return MARKER + encode_frame(frame)


async def serve(agent: FakeAgent) -> None:
    while True:
        frame = await agent.receive()
        if frame["type"] == "execute":
            await agent.answer(frame, stdout=frame["code"])


async def test_an_idle_one_goes_on() -> None:
    async def script(agent: FakeAgent) -> None:
        await agent.send_raw(resumed(recent=["1.x"], count=7))
        await serve(agent)

    async with taken_up(script, created_s=500) as it:
        early = it.submit("early")
        assert it.session.state is SessionState.STARTING
        assert (await early.wait()).outcome.stdout == "early"
        assert (it.session.runs.count, it.session.taken_up) == (8, 2)
        assert (await it.submit("late").wait()).outcome.stdout == "late"
        (told,) = it.watcher.resumed
        assert told[1].recent == ("1.x",)
        # Its idle time starts again, its lifetime does not.
        now = trio.current_time()
        await it.session.wait_ended()
        assert 90 < trio.current_time() - now < 150


async def test_a_one_shot_that_was_not_sent_its_code_ends() -> None:
    """The supervisor was killed before that: a client that asks again is given another one."""

    async def script(agent: FakeAgent) -> None:
        await agent.send_raw(resumed(count=0))
        await serve(agent)

    async with taken_up(script, tenancy=replace(TENANCY, name=None)) as it:
        await it.back()
        await it.session.wait_ended()
        assert trio.current_time() < RESUME_TIMEOUT_S
        assert it.jail.killed


@pytest.mark.parametrize(("said_s", "held_s"), [(40, 40), (9999, 500), (-9999, 0)])
async def test_times_are_those_of_the_earlier_supervisor(said_s: float, held_s: float) -> None:
    now = time.time()

    async def script(agent: FakeAgent) -> None:
        notes = {"5.run": {"note": {"sent_at": now - said_s}, "code": "slow"}}
        await agent.send_raw(resumed({"5.run": "running"}, notes=notes, count=5))
        await serve(agent)

    async with taken_up(script, created_s=500) as it:
        await it.back()
        opened, sent = islice(it.session.transcript.read(), 2)
        assert isinstance(opened, SessionStart)
        assert isinstance(sent, ExecutionStart)
        assert opened.started_at == pytest.approx(now - 500, abs=60)
        assert sent.started_at == pytest.approx(now - held_s, abs=60 if held_s != 40 else 1e-3)
        assert trio.current_time() - it.session.transcript.started_s >= 500


async def test_a_limit_that_was_reached_meanwhile_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The interpreter was killed for want of memory while there was no supervisor."""
    tree = GroupTree(str(FakeTree(tmp_path, monkeypatch).top))
    group = Group.new(tree, "s1", limits_of(spec(), SessionLimits()))
    (Path(group.directory) / "memory.events").write_text("oom_kill 5\n")
    notes: list[object] = []

    async def script(agent: FakeAgent) -> None:
        known = {"5.run": {"note": {"counted": [4, 0]}, "code": "b'x' * 10**12"}}
        await agent.send_raw(resumed({"5.run": "finished"}, notes=known, count=5))
        await agent.answer(
            {"id": "5.run"},
            exit_code=137,
            interpreter_restarted=True,
            restart_reason="python was killed by SIGKILL",
        )
        while (frame := await agent.receive())["type"] != "execute":
            pass
        notes.append(frame["note"]["counted"])
        await agent.answer(frame)
        await serve(agent)

    enforcer = LimitEnforcer(tree, limits=SessionLimits())
    async with taken_up(script, enforcer=enforcer, group=group.directory) as it:
        await it.back()
        execution = it.watcher.executions["run"]
        await execution.wait()
        (event,) = execution.limit_events
        assert (event.kind, event.what) == ("memory", "the interpreter was killed")
        await it.submit("next").wait()
    assert notes == [[5, 0]]


async def test_results_that_nobody_acknowledged_are_there() -> None:
    async def script(agent: FakeAgent) -> None:
        states = {"10.b": "running", "9.a": "finished"}
        await agent.send_raw(resumed(states, count=10))
        await agent.answer({"id": "9.a"}, stdout="first")
        await agent.answer({"id": "10.b"}, stdout="second")
        await serve(agent)

    async with taken_up(script) as it:
        await it.back()
        answers = {
            name: (await execution.wait()).outcome.stdout
            for name, execution in it.watcher.executions.items()
        }
        assert answers == {"a": "first", "b": "second"}
        assert (await it.submit("more").wait()).outcome.stdout == "more"


@pytest.mark.parametrize("torn", [0, 1, 3, 25, 60, 150])
async def test_an_answer_to_one_that_was_killed_before_it_had_it(torn: int) -> None:
    """Two supervisors were killed, one after the other: the agent, which was stopped meanwhile,
    answers both markers, whole or not, and repeats what nobody has acknowledged. What it says in
    the first answer is no longer so."""
    result = {"type": "result", "stderr": "", "exit_code": 0}
    said = [
        {**result, "id": "1.x", "stdout": "first", "seq": 1},
        {"type": "pong", "seq": 2},
        {**result, "id": "2.y", "stdout": "second", "seq": 3},
    ]
    frames = [encode_frame(frame) for frame in said]
    outdated = resumed({"1.x": "running"}, count=1) + b"".join(frames[:2])

    async def script(agent: FakeAgent) -> None:
        states = {"1.x": "finished", "2.y": "finished"}
        agent.begin_after(3)
        await agent.send_raw(resumed(states, count=2) + b"".join(frames))
        await serve(agent)

    async with taken_up(script, earlier=outdated[: len(outdated) - torn]) as it:
        await it.back()
        answers = {
            name: (await execution.wait()).outcome.stdout
            for name, execution in it.watcher.executions.items()
        }
        assert answers == {"x": "first", "y": "second"}
        assert len(it.watcher.resumed) == 1
        for code in ("more", "and more"):
            assert (await it.submit(code).wait()).outcome.stdout == code


async def test_open_transfers_are_ended() -> None:
    told: list[Mapping[str, Any]] = []

    async def script(agent: FakeAgent) -> None:
        await agent.send_raw(resumed(files=["q3", "q4"]))
        while True:
            told.append(await agent.receive())

    async with taken_up(script) as it:
        await it.back()
        await trio.testing.wait_all_tasks_blocked()
    closed = [(frame["id"], frame["keep"]) for frame in told if frame["type"] == "file_close"]
    assert closed == [("q3", False), ("q4", False)]


@pytest.mark.parametrize(
    ("said", "reason"),
    [
        (b"", "did not answer the new supervisor within"),
        (b"x" * 1000, "did not answer the new supervisor within"),
        (MARKER, "did not answer the new supervisor within"),
        (MARKER + encode_frame({"type": "pong"}), "the first frame is not `resumed`"),
        (MARKER + b"\xff\xff\xff\xff", "did not answer the new supervisor within"),
        (MARKER + b"\xff" * 500, "broke the protocol"),
        (MARKER + encode_frame({"type": "resumed", "executions": []}), "broke the protocol"),
        (resumed(count=-1), "broke the protocol"),
    ],
)
async def test_an_agent_that_does_not_say_what_it_should_ends(said: bytes, reason: str) -> None:
    async def script(agent: FakeAgent) -> None:
        await agent.send_raw(said)
        await serve(agent)

    async with taken_up(script) as it:
        waiting = it.submit("1")
        with pytest.raises(SessionEndedError, match=reason):
            await waiting.wait()
        await it.session.wait_ended()
        assert trio.current_time() < RESUME_TIMEOUT_S + 30
        assert it.jail.killed


async def test_an_agent_that_is_stopped_is_waited_for() -> None:
    async def script(agent: FakeAgent) -> None:
        await serve(agent)

    with stopped() as process:
        async with taken_up(script) as it:
            it.jail.pid = process.pid
            waiting = it.submit("1")
            await trio.sleep(500)
            assert it.session.live
            go_on(process)
            with pytest.raises(SessionEndedError, match="did not answer the new supervisor"):
                await waiting.wait()


async def test_a_session_can_end_before_its_agent_has_answered() -> None:
    async with taken_up(serve) as it:
        waiting = it.submit("1")
        it.session.end("killed by a test")
        with pytest.raises(SessionEndedError, match="killed by a test"):
            await waiting.wait()
        await it.session.wait_ended()
        assert it.jail.killed


# The order in which agents are asked.


class Asked:
    """Sessions that got their turns, in that order, and answers that end turns."""

    def __init__(self, nursery: trio.Nursery) -> None:
        self.turns = ResumeTurns()
        self.order: list[int] = []
        self._answers: dict[int, trio.Event] = {}
        self._nursery = nursery

    def ask(self, *numbers: int) -> None:
        for number in numbers:
            self._answers[number] = trio.Event()
            self._nursery.start_soon(self._turn, number)

    def answer(self, number: int) -> None:
        self._answers[number].set()

    async def _turn(self, number: int) -> None:
        async with ResumeTurn(self.turns, str(number)):
            self.order.append(number)
            await self._answers[number].wait()


async def test_few_are_asked_at_once_and_an_awaited_session_first() -> None:
    async with trio.open_nursery() as nursery:
        asked = Asked(nursery)
        asked.ask(*range(100))
        await trio.testing.wait_all_tasks_blocked()
        assert len(asked.order) == AT_ONCE
        waiting = [number for number in range(100) if number not in asked.order]
        asked.turns.advance(str(waiting[-1]))
        await trio.testing.wait_all_tasks_blocked()
        assert asked.order[AT_ONCE:] == [waiting[-1]]
        asked.answer(asked.order[0])
        await trio.testing.wait_all_tasks_blocked()
        assert len(asked.order) == AT_ONCE + 1  # the one that went first takes its place
        asked.answer(asked.order[1])
        await trio.testing.wait_all_tasks_blocked()
        assert len(asked.order) == AT_ONCE + 2
        asked.turns.advance_all()
        await trio.testing.wait_all_tasks_blocked()
        assert sorted(asked.order) == list(range(100))
        asked.ask(100)
        await trio.testing.wait_all_tasks_blocked()
        assert asked.order[-1] == 100
        nursery.cancel_scope.cancel()
    assert repr(asked.turns) == "<ResumeTurns 0 under way, 0 waiting>"


async def test_a_session_that_was_advanced_before_it_waits_goes_first() -> None:
    async with trio.open_nursery() as nursery:
        asked = Asked(nursery)
        asked.turns.advance("77")
        asked.ask(*range(AT_ONCE))
        await trio.testing.wait_all_tasks_blocked()
        asked.ask(77)
        await trio.testing.wait_all_tasks_blocked()
        assert asked.order[-1] == 77
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize("waiting", [False, True])
async def test_a_session_that_ends_gives_its_turn_back(waiting: bool) -> None:
    async with trio.open_nursery() as nursery:
        asked = Asked(nursery)
        with trio.CancelScope() as scope:
            async with trio.open_nursery() as own:
                some = Asked(own)
                some.turns = asked.turns
                some.ask(*range(AT_ONCE + 1 if waiting else AT_ONCE))
                await trio.testing.wait_all_tasks_blocked()
                scope.cancel()
        asked.ask(*range(200, 200 + AT_ONCE))
        await trio.testing.wait_all_tasks_blocked()
        assert len(asked.order) == AT_ONCE
        nursery.cancel_scope.cancel()
