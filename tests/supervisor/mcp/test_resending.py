"""Calls that a shim sends again after its supervisor ended, at the endpoint of the next one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import trio
import trio.testing

from fake_programs import FakePrograms
from fake_runner import FakeRunner, echo
from json_peer import Peer, call_params, text_of
from mcp_peer import attachment
from nsm.wire.errors import FateUnknownError
from nsmd.mcp import router
from nsmd.mcp.attachment import EndpointLoader, serve_attachment
from nsmd.mcp.endpoint import serve
from nsmd.mcp.router import Number

if TYPE_CHECKING:
    from fake_runner import FakeExecution

ID = "0123456789abcdef" * 2
CODE = {"code": "print(1)", "env": "python"}


async def begin(peer: Peer) -> None:
    assert (await peer.attach(id=ID))["numbered"] is True
    await peer.initialize()


async def send(peer: Peer, mark: str, known: int, **params: Any) -> None:
    call = {"id": known, "method": "tools/call", "params": call_params(CODE) | params}
    request = numbers_line(mark, {"jsonrpc": "2.0", **call})
    await peer.send_raw(request)


def numbers_line(mark: str, message: dict[str, Any]) -> bytes:
    import json

    return f"{mark} {json.dumps(message)}".encode()


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
def test_numbers(line: bytes, number: Number | None, rest: bytes) -> None:
    assert router.split_number(line, ID) == (number, rest)


async def test_calls_are_known_by_the_numbers_of_their_lines() -> None:
    runner = FakeRunner(echo)
    async with attachment(runner) as peer:
        await begin(peer)
        for number in (4, 5):  # the second is answered without the SDK
            await send(peer, str(number), known=1)  # a client that uses one id twice
            assert (await peer.receive())["id"] == 1
            request = (await runner.next()).request
            assert (request.execution_id, request.again) == (f"{ID}-{number}", False)


async def test_one_that_is_sent_again_says_so() -> None:
    runner = FakeRunner(echo)
    async with attachment(runner) as peer:
        await begin(peer)
        for number in (4, 5):
            await send(peer, f"{number}+1.500", known=1)
            assert (await peer.receive())["id"] == 1
            request = (await runner.next()).request
            assert (request.execution_id, request.again) == (f"{ID}-{number}", True)


async def test_what_became_of_it_is_told_to_the_model() -> None:
    runner = FakeRunner()
    runner.refusal = FateUnknownError("Nobody knows.", hint="Check.")
    async with attachment(runner) as peer:
        await begin(peer)
        await send(peer, "4+1.500", known=1)
        assert text_of((await peer.receive())["result"]) == "Nobody knows.\nCheck."


async def test_it_can_be_taken_back_like_any_other() -> None:
    runner = FakeRunner()
    async with attachment(runner) as peer:
        await begin(peer)
        await send(peer, "4+1.500", known=1)
        execution = await runner.next()
        await peer.notify("notifications/cancelled", {"requestId": 1})
        await execution.interrupted.wait()


async def test_progress_grows_on(autojump_clock: trio.abc.Clock) -> None:
    runner = FakeRunner()
    async with attachment(runner) as peer:
        await begin(peer)
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

        async def serve_it() -> None:
            loader = EndpointLoader(serve)
            await serve_attachment(
                theirs,
                b"",
                FakeRunner().service,
                endpoint=loader,
                programs=FakePrograms().service,
                ending=lambda: ends,
            )

        nursery.start_soon(serve_it)
        await begin(peer)
        await trio.testing.wait_all_tasks_blocked()
        nursery.cancel_scope.cancel()
    rest = b""
    with trio.CancelScope(shield=True):
        while chunk := await ours.receive_some(65536):
            rest += chunk
    assert rest == (b'\n{"nsm": 1, "ending": true}\n' if ends else b"")
