"""Calls of one client: in parallel, cancelled, too many, with progress."""

from __future__ import annotations

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from fake_runner import FakeExecution, FakeRunner, a_result, echo
from json_peer import Message, call_params, text_of
from mcp_peer import attachment
from nsm import jsonlines
from nsm.wire.errors import SessionEndedError
from nsmd.environments.on_demand import EnvironmentPendingError
from nsmd.mcp.router import MAX_CALLS

CODE = {"code": "print(1)", "env": "python"}


async def test_calls_run_in_parallel_and_answers_come_as_they_are_ready() -> None:
    runner = FakeRunner()
    async with attachment(runner) as peer:
        await peer.attach()
        await peer.initialize()
        first = await peer.start("tools/call", call_params({**CODE, "session": "a"}))
        second = await peer.start("tools/call", call_params({**CODE, "session": "b"}))
        one, two = await runner.next(), await runner.next()
        two.finish("2")
        assert (await peer.receive())["id"] == second
        one.finish("1")
        assert (await peer.receive())["id"] == first


async def test_a_session_that_ends_under_a_call() -> None:
    runner = FakeRunner()
    async with attachment(runner) as peer:
        await peer.attach()
        await peer.initialize()
        await peer.start("tools/call", call_params({**CODE, "session": "a"}))
        execution = await runner.next()
        execution.answer(SessionEndedError("Session 'a' was killed.", hint="Call again."))
        answer = await peer.receive()
        assert text_of(answer["result"]) == "Session 'a' was killed.\nCall again."
        assert not execution.abandoned.is_set()


@pytest.mark.parametrize("modern", [False, True])
async def test_cancellation_interrupts_and_is_not_answered(modern: bool) -> None:
    runner = FakeRunner()
    async with attachment(runner) as peer:
        await peer.attach()
        await peer.initialize()
        call = await peer.start("tools/call", call_params(CODE, modern=modern))
        execution = await runner.next()
        await peer.notify("notifications/cancelled", {"requestId": call, "reason": "Esc"})
        await execution.interrupted.wait()
        assert not execution.abandoned.is_set()
        assert (await peer.request("ping"))["result"] == {}  # and not the cancelled call's answer


async def test_cancelling_twice_or_too_late_does_nothing() -> None:
    runner = FakeRunner(echo)
    async with attachment(runner) as peer:
        await peer.attach()
        await peer.initialize()
        await peer.call(CODE)
        execution = await runner.next()
        for _ in range(2):
            await peer.notify("notifications/cancelled", {"requestId": 2})
        assert (await peer.request("ping"))["result"] == {}
        assert not execution.interrupted.is_set()


async def test_an_id_of_a_cancelled_call_can_be_used_again() -> None:
    runner = FakeRunner()
    async with attachment(runner) as peer:
        await peer.attach()
        await peer.initialize()
        call = {"jsonrpc": "2.0", "id": 50, "method": "tools/call", "params": call_params(CODE)}
        await peer.send(call)
        first = await runner.next()
        await peer.notify("notifications/cancelled", {"requestId": 50})
        await first.interrupted.wait()
        await wait_all_tasks_blocked()
        await peer.send(call)
        (await runner.next()).finish("again")
        assert text_of((await peer.receive())["result"]) == "again"


async def test_an_id_in_use_is_refused_and_the_first_is_answered() -> None:
    runner = FakeRunner()
    async with attachment(runner) as peer:
        await peer.attach()
        await peer.initialize()
        call = {"jsonrpc": "2.0", "id": 50, "method": "tools/call", "params": call_params(CODE)}
        await peer.send(call)
        await peer.send(call)
        refusal = await peer.receive()
        assert (refusal["id"], refusal["error"]["code"]) == (50, -32600)
        (await runner.next()).finish("first")
        assert text_of((await peer.receive())["result"]) == "first"


@pytest.mark.parametrize(
    "refused",
    [
        f'"params":{"[" * 100}{"]" * 100}',
        f'"params":"{"x" * jsonlines.MAX_LINE_BYTES}"',
        '"params":"none"',
    ],
    ids=["deep", "long", "no_object"],
)
async def test_a_refused_line_does_not_free_the_id_of_a_call(refused: str) -> None:
    runner = FakeRunner()
    async with attachment(runner) as peer:
        await peer.attach()
        await peer.initialize()
        call = {"jsonrpc": "2.0", "id": "=7", "method": "tools/call", "params": call_params(CODE)}
        await peer.send(call)
        first = await runner.next()
        await peer.send_raw(b'{"jsonrpc":"2.0","id":"=7","method":"x",%s}\n' % refused.encode())
        answer = await peer.receive()
        assert (answer["id"], "error" in answer) == ("=7", True)
        await peer.send(call)
        assert "is in use" in (await peer.receive())["error"]["message"]
        first.finish("first")
        assert text_of((await peer.receive())["result"]) == "first"


@pytest.mark.parametrize("modern", [False, True])
@pytest.mark.parametrize("at_once", [False, True])
async def test_a_number_and_the_same_as_text_are_two_ids(modern: bool, at_once: bool) -> None:
    runner = FakeRunner()
    async with attachment(runner) as peer:
        await peer.attach()
        await peer.initialize()
        if at_once:  # without the SDK, as from the second call on
            await peer.start("tools/call", call_params(CODE, modern=modern))
            (await runner.next()).finish("warm")
            await peer.receive()
        params = call_params(CODE, modern=modern)
        started: dict[object, FakeExecution] = {}
        for known in (401, "401", "=401"):
            await peer.send(
                {"jsonrpc": "2.0", "id": known, "method": "tools/call", "params": params}
            )
            started[known] = await runner.next()
        await peer.notify("notifications/cancelled", {"requestId": "401"})
        await started["401"].interrupted.wait()
        started["=401"].finish("third")
        answer = await peer.receive()
        assert (answer["id"], text_of(answer["result"])) == ("=401", "third")
        assert not started[401].interrupted.is_set()
        started[401].finish("first")
        answer = await peer.receive()
        assert (answer["id"], text_of(answer["result"])) == (401, "first")


async def test_too_many_calls_at_once_are_refused() -> None:
    runner = FakeRunner()
    async with attachment(runner) as peer:
        await peer.attach()
        await peer.initialize()
        for _ in range(MAX_CALLS + 2):
            await peer.start("tools/call", call_params(CODE))
        for _ in range(2):
            refused = (await peer.receive())["result"]
            assert refused["isError"] is True
            assert "128 requests" in text_of(refused)
        assert "error" in await peer.request("ping")
        for _ in range(MAX_CALLS):
            (await runner.next()).finish("done")
        for _ in range(MAX_CALLS):
            assert text_of((await peer.receive())["result"]) == "done"
        assert (await peer.request("ping"))["result"] == {}


@pytest.mark.parametrize("modern", [False, True])
async def test_progress_where_it_was_asked_for(autojump_clock: MockClock, modern: bool) -> None:
    runner = FakeRunner()
    async with attachment(runner) as peer:
        await peer.attach()
        await peer.initialize()
        params = call_params(CODE, modern=modern)
        params["_meta"] = {**params.get("_meta", {}), "progressToken": "t"}
        call = await peer.start("tools/call", params)
        execution = await runner.next()
        execution.print("one\n")
        expected: list[Message] = [{"progressToken": "t", "progress": 0.0, "message": "one\n"}]
        await trio.sleep(0.05)
        execution.print("two\n")
        execution.print("three\n")
        expected.append({"progressToken": "t", "progress": 0.1, "message": "two\nthree\n"})
        expected.append({"progressToken": "t", "progress": 15.1, "message": "running for 15 s"})
        for params in expected:
            notification = await peer.receive()
            assert notification["method"] == "notifications/progress"
            assert notification["params"] == params
        execution.finish("one\ntwo\nthree\n")
        answer = await peer.receive()
        assert (answer["id"], text_of(answer["result"])) == (call, "one\ntwo\nthree\n")


async def test_an_environment_that_is_being_made_is_waited_for(autojump_clock: MockClock) -> None:
    runner = FakeRunner(echo)
    settled = trio.Event()
    runner.refusal = EnvironmentPendingError("project", "nix is at it", settled)
    async with attachment(runner) as peer:
        await peer.attach()
        await peer.initialize()
        params = call_params(CODE)
        params["_meta"] = {"progressToken": "t"}
        call = await peer.start("tools/call", params)
        silent = await peer.receive()
        assert silent["params"]["message"] == "running for 15 s"
        assert (await peer.request("ping"))["result"] == {}
        runner.refusal = None
        settled.set()
        answer = await peer.receive()
        assert (answer["id"], text_of(answer["result"])) == (call, "print(1)")


async def test_one_that_takes_longer_is_an_error_that_says_so(autojump_clock: MockClock) -> None:
    runner = FakeRunner(echo)
    runner.refusal = EnvironmentPendingError("project", "nix is at it", trio.Event())
    async with attachment(runner) as peer:
        await peer.attach()
        await peer.initialize()
        result = await peer.call(CODE)
        assert result["isError"]
        assert "nix is at it. The code was not run." in text_of(result)
        assert "the other environments work meanwhile" in text_of(result)


async def test_without_a_token_nobody_listens_to_output() -> None:
    runner = FakeRunner()
    async with attachment(runner) as peer:
        await peer.attach()
        await peer.initialize()
        await peer.start("tools/call", call_params(CODE))
        execution = await runner.next()
        assert execution.on_output is None
        execution.finish()
        await peer.receive()


async def test_a_chosen_session_name_is_told() -> None:
    runner = FakeRunner()
    async with attachment(runner) as peer:
        await peer.attach()
        await peer.initialize()
        await peer.start("tools/call", call_params({**CODE, "session": "new"}))
        execution = await runner.next()
        assert execution.request.session == "new"
        execution.answer(a_result(session="python-amber-7", created=True))
        text = text_of((await peer.receive())["result"])
        assert text == "(no output)\n[session: python-amber-7]"
