"""Answers to several calls of one client, in both eras."""

from __future__ import annotations

import pytest
from trio.testing import wait_all_tasks_blocked

from fake_runner import FakeRunner, a_project, echo
from json_peer import Message, Peer, call_params, text_of
from mcp_peer import attachment
from nsm import jsonlines
from nsm.wire.errors import BadProjectError, OverloadedError, SessionEndedError
from nsmd.mcp.router import MAX_CALLS

CODE = {"code": "print(1)", "env": "python"}
ERAS = pytest.mark.parametrize("modern", [False, True])


async def begin(peer: Peer, runner: FakeRunner, *, modern: bool = False) -> None:
    """A first call, as the SDK wants it."""
    await peer.attach()
    await peer.initialize()
    call = await peer.start("tools/call", call_params(CODE, modern=modern))
    (await runner.next()).finish("first")
    assert (await peer.receive())["id"] == call


def without_id(answer: Message) -> Message:
    return {key: value for key, value in answer.items() if key != "id"}


@ERAS
async def test_the_answers_are_the_same(modern: bool) -> None:
    runner = FakeRunner(echo)
    async with attachment(runner) as peer:
        await peer.attach()
        await peer.initialize()
        params = call_params({**CODE, "session": "s"}, modern=modern)
        first, second = [await peer.request("tools/call", params) for _ in range(2)]
        assert without_id(first) == without_id(second)
        requests = [(await runner.next()).request for _ in range(2)]
        assert requests[0] == requests[1]
        wrong = call_params({**CODE, "timeout_seconds": -1}, modern=modern)
        after = await peer.request("tools/call", wrong)
        assert "must be a finite number above 0" in text_of(after["result"])


async def test_errors_are_told_in_the_same_words() -> None:
    runner = FakeRunner()
    async with attachment(runner) as peer:
        await begin(peer, runner)
        await peer.start("tools/call", call_params(CODE))
        (await runner.next()).answer(SessionEndedError("Session 'a' was killed.", hint="Again."))
        assert text_of((await peer.receive())["result"]) == "Session 'a' was killed.\nAgain."
        runner.refusal = OverloadedError("Too much.", hint="Wait.")
        answer = await peer.request("tools/call", call_params(CODE))
        assert text_of(answer["result"]) == "Too much.\nWait."
        assert answer["result"]["isError"]


@ERAS
async def test_a_call_taken_back_is_interrupted_and_not_answered(modern: bool) -> None:
    runner = FakeRunner()
    async with attachment(runner) as peer:
        await begin(peer, runner, modern=modern)
        params = call_params(CODE, modern=modern)
        call = {"jsonrpc": "2.0", "id": 50, "method": "tools/call", "params": params}
        await peer.send(call)
        first = await runner.next()
        await peer.notify("notifications/cancelled", {"requestId": 50, "reason": "Esc"})
        await first.interrupted.wait()
        await peer.send(call)  # its id is free again
        second = await runner.next()
        first.finish("late")
        second.finish("again")
        assert text_of((await peer.receive())["result"]) == "again"
        assert not first.abandoned.is_set()


async def test_a_client_that_goes_abandons_what_runs() -> None:
    runner = FakeRunner()
    async with attachment(runner) as peer:
        await begin(peer, runner)
        await peer.start("tools/call", call_params(CODE))
        execution = await runner.next()
        assert not execution.abandoned.is_set()
    assert execution.abandoned.is_set()
    assert not execution.interrupted.is_set()
    execution.finish("nobody hears this")


async def test_a_project_that_is_gone_is_looked_for_again() -> None:
    runner = FakeRunner(echo)
    runner.project = a_project()
    async with attachment(runner) as peer:
        await peer.attach()
        await peer.initialize()
        await peer.call(CODE)
        runner.refusal = BadProjectError("It is gone.", hint="Name another.")
        assert text_of(await peer.call(CODE)).startswith("It is gone.")
        runner.refusal = None
        await peer.call(CODE)
        assert len(runner.asked_projects) == 2


async def test_a_client_that_does_not_read_has_no_more_than_its_calls() -> None:
    runner = FakeRunner(echo)
    async with attachment(runner) as peer:
        await peer.attach()
        await peer.initialize()
        await peer.call(CODE)
        ids = [await peer.start("tools/call", call_params(CODE)) for _ in range(2 * MAX_CALLS)]
        await wait_all_tasks_blocked()
        answers = [await peer.receive() for _ in ids]
        assert sorted(answer["id"] for answer in answers) == ids


async def test_an_answer_too_long_for_a_line_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    runner = FakeRunner()
    async with attachment(runner) as peer:
        await begin(peer, runner)
        monkeypatch.setattr(jsonlines, "MAX_LINE_BYTES", 5000)
        await peer.start("tools/call", call_params(CODE))
        (await runner.next()).finish("x" * 10_000)
        assert "The answer has" in text_of((await peer.receive())["result"])
