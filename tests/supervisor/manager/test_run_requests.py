"""Code that is sent again: it is run once, and answered each time; Markdown fences around code.

Time is virtual.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import pytest
import trio
import trio.testing

from fakes import FakeAgent, FakeJail
from nsm.dataclass import replace
from nsm.wire.errors import BadRequestError, FateUnknownError, ResultLostError
from nsmd.agent_link.frames import Noted
from nsmd.manager.run_requests import without_fence
from nsmd.model.values import ClientIdentity, Output, RunRequest
from nsmd.sessions.execution import interrupted_early
from run_service_bench import ALICE, BOB, bench

if TYPE_CHECKING:
    from nsmd.sessions.execution import Execution

pytestmark = pytest.mark.usefixtures("autojump_clock")


def request(
    execution_id: str | None = "e",
    *,
    again: bool = True,
    session: str | None = "a",
    client: ClientIdentity = ALICE,
) -> RunRequest:
    return RunRequest(
        client=client,
        env="python",
        code="x",
        session=session,
        execution_id=execution_id,
        again=again,
    )


class Halting:
    """An agent whose executions go on until the test lets them end.

    Attributes:
        ran: how many were begun.
        frames: that came besides.
    """

    def __init__(self) -> None:
        self.ran = 0
        self.frames: list[str] = []
        self.go_on = trio.Event()
        self.agents: list[FakeAgent] = []
        self.ids: list[str] = []

    async def __call__(self, agent: FakeAgent, jail: FakeJail) -> None:
        await agent.be_ready()
        try:
            while True:
                frame = await agent.receive()
                if frame["type"] == "execute":
                    self.ran += 1
                    self.agents.append(agent)
                    self.ids.append(frame["id"])
                    await self.go_on.wait()
                    await agent.answer(frame, stdout="done")
                else:
                    self.frames.append(frame["type"])
        except EOFError:
            return


async def test_code_that_runs_already_is_waited_for_and_not_run_twice() -> None:
    agent = Halting()
    async with bench(behave=agent) as it:
        first = it.run_service.submit(request(again=False))
        await trio.testing.wait_all_tasks_blocked()
        second = it.run_service.submit(request())
        assert second is first
        agent.go_on.set()
        assert (await second.wait()).outcome.stdout == "done"
        assert agent.ran == 1


async def test_a_remembered_result_is_given_again() -> None:
    async with bench() as it:
        first = await it.run_service.submit(request(again=False)).wait()
        assert await it.run_service.submit(request()).wait() == first


async def test_in_a_session_of_any_scope_likewise() -> None:
    agent = Halting()
    async with bench(behave=agent) as it:
        session = it.run_service.submit(request("other", again=False)).session
        await trio.testing.wait_all_tasks_blocked()
        first = it.run_service.submit(request(again=False, client=BOB), session=session)
        assert it.run_service.submit(request(client=BOB), session=session) is first
        assert it.run_service.retries.find_of_gone(request(client=BOB)) is first
        agent.go_on.set()
        await first.wait()


async def test_somebody_elses_execution_is_not_found() -> None:
    async with bench() as it:
        await it.run_service.submit(request(again=False)).wait()
        with pytest.raises(FateUnknownError):
            it.run_service.submit(request(client=BOB))


async def test_a_session_does_not_answer_for_another() -> None:
    """An agent that was reattached says which execution it has."""
    async with bench() as it:
        await it.run_service.submit(request(again=False)).wait()
        for session in ("b", None):
            with pytest.raises(FateUnknownError):
                it.run_service.submit(request(session=session))
        assert (await it.run_service.submit(request(session="new")).wait()).session_name == "a"


async def test_code_of_unknown_fate_is_not_run() -> None:
    async with bench() as it:
        with pytest.raises(FateUnknownError, match="unknown") as caught:
            it.run_service.submit(request())
        assert caught.value.data == {"execution_id": "e"}
        assert it.run_service.live_sessions() == []
        with pytest.raises(FateUnknownError):
            it.run_service.retries.find_of_gone(request())


async def test_code_that_certainly_never_ran_is_run() -> None:
    async with bench() as it:
        it.session_manager.earlier_executions.complete = True
        it.session_manager.earlier_executions.surviving.add(("alice", "a"))
        answer = await it.run_service.submit(request()).wait()
        assert answer.execution_id == "e"
        assert (await it.run_service.submit(request(session=None, execution_id="f")).wait()).created


async def test_the_scope_of_the_session_counts_and_not_the_clients() -> None:
    async with bench() as it:
        it.session_manager.earlier_executions.complete = True
        it.session_manager.earlier_executions.surviving.add(("alice", "a"))
        session = it.run_service.submit(request("first", again=False)).session
        await it.run_service.submit(request(client=BOB), session=session).wait()
        with pytest.raises(FateUnknownError):
            it.run_service.submit(request("g", client=BOB))


async def test_code_that_ran_to_its_end_is_not_run_again() -> None:
    async with bench() as it:
        it.session_manager.earlier_executions.was_done("e", "alice", "a")
        with pytest.raises(ResultLostError, match="run to its end"):
            it.run_service.submit(request())
        with pytest.raises(ResultLostError):
            it.run_service.submit(request(session="new"))
        with pytest.raises(ResultLostError):
            it.run_service.retries.find_of_gone(request())


async def test_an_agent_says_of_its_own_session_alone_what_was_run() -> None:
    async with bench() as it:
        it.session_manager.earlier_executions.complete = True
        it.session_manager.earlier_executions.surviving.add(("alice", "b"))
        it.session_manager.earlier_executions.was_done("e", "alice", "a")
        assert (await it.run_service.submit(request(session="b")).wait()).execution_id == "e"


def claimed(agent_id: str, **note: object) -> Noted:
    return Noted(id=agent_id, runs=True, note=note, code="")


async def test_an_agent_that_claims_anothers_execution_does_not_get_it_run_twice() -> None:
    """Such an agent knows its own ids, and a client's next ones are easy to guess."""
    async with bench() as it:
        sessions = [
            it.run_service.submit(request(None, again=False, session=x)).session for x in "ab"
        ]
        it.session_manager.earlier_executions.complete = True
        it.session_manager.earlier_executions.surviving |= {("alice", "a"), ("alice", "b")}
        liar, honest = (it.session_manager.execution_resumed(x, claimed("1.e")) for x in sessions)
        assert it.run_service.submit(request(session="a")) is liar
        assert it.run_service.submit(request(session="b")) is honest


async def test_an_agent_that_claims_ids_to_come_keeps_no_code_out_of_other_sessions() -> None:
    async with bench() as it:
        session = it.run_service.submit(request(None, again=False)).session
        lies = it.session_manager.execution_resumed(session, claimed("1.e"))
        with pytest.raises(BadRequestError, match="exists already"):
            it.run_service.submit(request(again=False))
        answer = await it.run_service.submit(request(session="b", again=False)).wait()
        assert (answer.execution_id, answer.session_name) == ("e", "b")
        assert lies.id != "e"
        assert it.run_service.execution(lies.id) is lies
        lies.finish(interrupted_early())
        assert it.run_service.submit(request(session="a")) is lies


async def test_an_agent_does_not_lengthen_its_own_time() -> None:
    async with bench() as it:
        session = it.run_service.submit(request(None, again=False)).session
        limit_s = session.spec.environment.timeout_s
        for said_s, holds_s in ((1e8, limit_s), (1.5, 1.5), ("x", limit_s)):
            execution = it.session_manager.execution_resumed(
                session, claimed("1.e", timeout_s=said_s)
            )
            assert execution.origin.timeout_s == holds_s


async def test_an_agent_says_when_its_execution_was_sent() -> None:
    async with bench() as it:
        session = it.run_service.submit(request(None, again=False)).session
        for said, holds in (
            (1.8e9, 1.8e9),
            (float("nan"), None),
            (float("inf"), None),
            ("x", None),
        ):
            execution = it.session_manager.execution_resumed(session, claimed("1.e", sent_at=said))
            assert execution.sent_at == holds


async def test_code_that_never_arrived_is_run() -> None:
    async with bench() as it:
        with pytest.raises(FateUnknownError):
            it.run_service.submit(request(session="b"))
        sent_here = replace(request(session="b"), sent_to=it.run_service.instance)
        with pytest.raises(FateUnknownError):
            it.run_service.submit(replace(sent_here, sent_to="another"))
        execution = it.run_service.submit(sent_here)
        assert it.run_service.submit(sent_here) is execution


async def test_without_an_id_there_is_nothing_to_find() -> None:
    async with bench() as it:
        with pytest.raises(BadRequestError, match="execution_id"):
            it.run_service.submit(request(None))


async def test_output_goes_to_all_who_wait_and_begins_late() -> None:
    agent = Halting()
    first: list[str] = []
    late: list[str] = []

    def put(to: list[str], output: Output) -> None:
        to.append(output.text)

    async with bench(behave=agent) as it:
        execution = it.run_service.submit(request(again=False))
        await trio.testing.wait_all_tasks_blocked()
        put_first, put_late = partial(put, first), partial(put, late)
        it.run_service.submit(request(), put_first)
        it.run_service.submit(request(), put_late)
        await print_to(agent, execution, "one")
        execution.abandon(put_first)
        await print_to(agent, execution, "two")
        agent.go_on.set()
        await execution.wait()
        await trio.testing.wait_all_tasks_blocked()
        assert agent.frames == ["stream"]  # once, and it has not streamed before
    assert first == ["one"]
    assert late == ["one", "two"]


async def print_to(agent: Halting, execution: Execution, text: str) -> None:
    frame = {"type": "output", "id": agent.ids[0], "stream": "stdout", "text": text}
    await agent.agents[0].send(frame)
    await trio.testing.wait_all_tasks_blocked()


async def test_a_one_shot_goes_on_as_long_as_somebody_waits() -> None:
    agent = Halting()
    async with bench(behave=agent) as it:
        execution = it.run_service.submit(request(again=False, session=None))
        await trio.testing.wait_all_tasks_blocked()
        it.run_service.submit(request(session=None))
        execution.abandon()
        await trio.testing.wait_all_tasks_blocked()
        assert execution.session.live
        execution.abandon()
        assert not execution.session.live


PLAIN = "the Markdown fence around the code was removed"


@pytest.mark.parametrize(
    ("code", "inner", "note"),
    [
        ("```python\nprint(1)\n```", "print(1)\n", PLAIN),
        ("```\nprint(1)\n```\n", "print(1)\n", PLAIN),
        ("\n  ```py title=x\r\nprint(1)\r\n```  \n\n", "print(1)\r\n", PLAIN),
        ("````\nx = '```'\n````", "x = '```'\n", PLAIN),
        ("```python\n```", "", PLAIN),
        ("```js\n1\n```", "1\n", f"{PLAIN}; it says js, and python ran the code"),
        ("```sql\n1\n```", "1\n", f"{PLAIN}; it says sql, and python ran the code"),
    ],
)
def test_a_fence_around_all_code_is_taken_off(code: str, inner: str, note: str) -> None:
    assert without_fence(code, "python") == (inner, note)


@pytest.mark.parametrize(
    "code",
    [
        "print(1)",
        "",
        "```",
        "``````",
        "```python\nprint(1)",
        "Text\n```python\nprint(1)\n```",
        "```python\nprint(1)\n```\ntext",
        "```python\nprint(1)\n```\ntext\n```python\nprint(2)\n```",
        'x = """\n```\n"""',
        "```print(1)```",
    ],
)
def test_other_code_is_left_as_it_is(code: str) -> None:
    assert without_fence(code, "python") == (code, "")


@pytest.mark.parametrize(
    ("code", "inner"),
    [
        ("\ufeffcd /tmp\r\npwd\r\n", "cd /tmp\npwd\n"),
        ("cd /tmp\r\npwd", "cd /tmp\npwd"),
        ("cd /tmp\r\npwd\r", "cd /tmp\npwd"),
        ("\ufeff```bash\r\npwd\r\n```\r\n", "pwd\n"),
        ("printf 'a\r\n'\npwd\n", "printf 'a\r\n'\npwd\n"),  # not all of them
    ],
)
def test_byte_order_marks_and_carriage_returns(code: str, inner: str) -> None:
    assert without_fence(code, "bash")[0] == inner
    assert without_fence(code, "python")[0] in (code.removeprefix("\ufeff"), "pwd\r\n")


def test_a_fence_is_looked_for_in_no_time() -> None:
    code = "```\n" + "` \n" * 300_000
    assert without_fence(code, "bash") == (code, "")
