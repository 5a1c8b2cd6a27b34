"""Calls of one client: in parallel, cancelled, too many, with progress, sent again by its shim."""

from __future__ import annotations

import json
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest
import trio
import trio.testing
from trio.testing import MockClock, wait_all_tasks_blocked

from fake_runner import FakeExecution, FakeRunner, a_result, echo
from json_peer import Message, Peer, call_params, text_of
from mcp_peer import attachment, serve_stream, served
from nsm import jsonlines
from nsm.wire.errors import OverloadedError, SessionEndedError
from nsmd.environments.on_demand import EnvironmentPendingError
from nsmd.mcp import router
from nsmd.mcp.router import MAX_CALLS, Number

if TYPE_CHECKING:
    from fake_runner import FakeExecution


CODE = {"code": "print(1)", "env": "python"}
ERAS = pytest.mark.parametrize("modern", [False, True])


async def first_call(peer: Peer, runner: FakeRunner, *, modern: bool = False) -> None:
    """A call that the SDK serves; later ones are served without it."""
    call = await peer.start("tools/call", call_params(CODE, modern=modern))
    (await runner.next()).finish("first")
    assert (await peer.receive())["id"] == call


def without_id(answer: Message) -> Message:
    return {key: value for key, value in answer.items() if key != "id"}


async def test_an_id_in_use_is_refused_and_the_first_is_answered() -> None:
    runner = FakeRunner()
    async with served(runner) as peer:
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
    async with served(runner) as peer:
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
@pytest.mark.parametrize("later", [False, True])
async def test_a_number_and_the_same_as_text_are_two_ids(modern: bool, later: bool) -> None:
    runner = FakeRunner()
    async with served(runner) as peer:
        if later:
            await first_call(peer, runner, modern=modern)
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
    async with served(runner) as peer:
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
    async with served(runner) as peer:
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
    async with served(runner) as peer:
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


async def test_an_environment_that_takes_too_long_is_an_error(autojump_clock: MockClock) -> None:
    runner = FakeRunner(echo)
    runner.refusal = EnvironmentPendingError("project", "nix is at it", trio.Event())
    async with served(runner) as peer:
        result = await peer.call(CODE)
        assert result["isError"]
        assert "nix is at it. The code was not run." in text_of(result)
        assert "the other environments work meanwhile" in text_of(result)


async def test_a_chosen_session_name_is_told() -> None:
    runner = FakeRunner()
    async with served(runner) as peer:
        await peer.start("tools/call", call_params({**CODE, "session": "new"}))
        execution = await runner.next()
        assert execution.request.session == "new"
        execution.answer(a_result(session="python-amber-7", created=True))
        text = text_of((await peer.receive())["result"])
        assert text == "(no output)\n[session: python-amber-7]"


@ERAS
@pytest.mark.parametrize("later", [False, True])
async def test_a_cancelled_call_is_interrupted_and_its_id_is_free_again(
    later: bool, modern: bool
) -> None:
    runner = FakeRunner()
    async with served(runner) as peer:
        if later:
            await first_call(peer, runner, modern=modern)
        params = call_params(CODE, modern=modern)
        call = {"jsonrpc": "2.0", "id": 50, "method": "tools/call", "params": params}
        await peer.send(call)
        first = await runner.next()
        await peer.notify("notifications/cancelled", {"requestId": 50, "reason": "Esc"})
        await first.interrupted.wait()
        await wait_all_tasks_blocked()
        await peer.send(call)
        second = await runner.next()
        first.finish("late")
        second.finish("again")
        assert text_of((await peer.receive())["result"]) == "again"
        assert not first.abandoned.is_set()


@ERAS
async def test_the_first_and_later_calls_are_answered_alike(modern: bool) -> None:
    runner = FakeRunner(echo)
    async with served(runner) as peer:
        params = call_params({**CODE, "session": "s"}, modern=modern)
        first, second = [await peer.request("tools/call", params) for _ in range(2)]
        assert without_id(first) == without_id(second)
        requests = [(await runner.next()).request for _ in range(2)]
        assert requests[0] == requests[1]
        wrong = call_params({**CODE, "timeout_seconds": -1}, modern=modern)
        after = await peer.request("tools/call", wrong)
        assert "must be a finite number above 0" in text_of(after["result"])


async def test_errors_are_results_with_the_next_step() -> None:
    runner = FakeRunner()
    async with served(runner) as peer:
        await first_call(peer, runner)
        await peer.start("tools/call", call_params(CODE))
        (await runner.next()).answer(SessionEndedError("Session 'a' was killed.", hint="Again."))
        assert text_of((await peer.receive())["result"]) == "Session 'a' was killed.\nAgain."
        runner.refusal = OverloadedError("Too much.", hint="Wait.")
        answer = await peer.request("tools/call", call_params(CODE))
        assert text_of(answer["result"]) == "Too much.\nWait."
        assert answer["result"]["isError"]


async def test_calls_of_a_client_that_does_not_read_are_all_answered_in_the_end() -> None:
    runner = FakeRunner(echo)
    async with served(runner) as peer:
        await peer.call(CODE)
        ids = [await peer.start("tools/call", call_params(CODE)) for _ in range(2 * MAX_CALLS)]
        await wait_all_tasks_blocked()
        answers = [await peer.receive() for _ in ids]
        assert sorted(answer["id"] for answer in answers) == ids


async def test_an_answer_too_long_for_a_line_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    runner = FakeRunner()
    async with served(runner) as peer:
        await first_call(peer, runner)
        monkeypatch.setattr(jsonlines, "MAX_LINE_BYTES", 5000)
        await peer.start("tools/call", call_params(CODE))
        (await runner.next()).finish("x" * 10_000)
        assert "The answer has" in text_of((await peer.receive())["result"])


# Calls that a shim sends again after its supervisor ended, at the endpoint of the next one.


ID = "0123456789abcdef" * 2


async def numbered(peer: Peer) -> None:
    """Attach as a shim that numbers its lines."""
    assert (await peer.attach(id=ID))["numbered"] is True
    await peer.initialize()


async def send(peer: Peer, mark: str, known: int, **params: Any) -> None:
    call = {"id": known, "method": "tools/call", "params": call_params(CODE) | params}
    await peer.send_raw(f"{mark} {json.dumps({'jsonrpc': '2.0', **call})}".encode())


@pytest.mark.parametrize(
    ("line", "number", "rest"),
    [
        (b'17 {"a": 1}', Number(f"{ID}-17"), b'{"a": 1}'),
        (b'17+2.250 {"a": 1}', Number(f"{ID}-17", 2.25), b'{"a": 1}'),
        (b"007+0.000 {}", Number(f"{ID}-7", 0.0), b"{}"),
        (b'{"a": 1}', None, b'{"a": 1}'),
        (b"17", None, b"17"),
        (b'17+2 {"a": 1}', None, b'17+2 {"a": 1}'),
        (b"9" * 400 + b" {}", None, b"9" * 400 + b" {}"),
    ],
)
def test_numbers_of_lines_are_split_off(line: bytes, number: Number | None, rest: bytes) -> None:
    assert router.split_number(line, ID) == (number, rest)


@pytest.mark.parametrize("again", [False, True])
async def test_calls_are_known_by_the_numbers_of_their_lines(again: bool) -> None:
    runner = FakeRunner(echo)
    async with attachment(runner) as peer:
        await numbered(peer)
        for number in (4, 5):  # the second is answered without the SDK
            mark = f"{number}+1.500" if again else str(number)
            await send(peer, mark, known=1)  # a client that uses one id twice
            assert (await peer.receive())["id"] == 1
            request = (await runner.next()).request
            assert (request.execution_id, request.again) == (f"{ID}-{number}", again)


async def test_progress_of_a_call_sent_again_grows_on(autojump_clock: trio.abc.Clock) -> None:
    runner = FakeRunner()
    async with attachment(runner) as peer:
        await numbered(peer)
        await send(peer, "4+100.000", known=1, _meta={"progressToken": "t"})
        execution: FakeExecution = await runner.next()
        execution.print("on it goes")
        told = (await peer.receive())["params"]
        assert (told["message"], told["progress"]) == ("on it goes", pytest.approx(100, abs=1))


@pytest.mark.parametrize("given", [None, "", "x" * 32, "0123456789ABCDEF", "ab", 7, "a" * 100])
async def test_an_older_shim_has_no_numbers(given: object) -> None:
    runner = FakeRunner(echo)
    async with attachment(runner) as peer:
        assert "numbered" not in await peer.attach(id=given)
        await peer.initialize()
        await peer.call(CODE)
        assert (await runner.next()).request.execution_id is None
        await peer.send_raw(b'4 {"jsonrpc": "2.0", "id": 9, "method": "ping"}')
        assert (await peer.receive())["error"]["code"] == -32700


@pytest.mark.parametrize("ends", [False, True])
async def test_the_shim_is_told_when_the_supervisor_ends_with_all_it_has(ends: bool) -> None:
    ours, theirs = trio.testing.memory_stream_pair()
    peer = Peer(ours)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(partial(serve_stream, theirs, FakeRunner(), ending=lambda: ends))
        await numbered(peer)
        await trio.testing.wait_all_tasks_blocked()
        nursery.cancel_scope.cancel()
    rest = b""
    with trio.CancelScope(shield=True):
        while chunk := await ours.receive_some(65536):
            rest += chunk
    assert rest == (b'\n{"nsm": 1, "ending": true}\n' if ends else b"")
