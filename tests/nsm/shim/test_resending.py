"""`nsm-mcp` whose supervisor goes away, and the next one, which it asks for what is missing."""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import trio

from json_peer import Message, Peer, call_params, text_of
from nsm.shim import relay as program
from shim_process import CODE, INITIALIZE, FakeSupervisor, Shim, fake_supervisor, shim

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Mapping
    from pathlib import Path


class Bench:
    """A shim whose client has introduced itself.

    Attributes:
        peer: the supervisor's end of its connection.
        id: of the attachment.
    """

    def __init__(self, supervisor: FakeSupervisor, running: Shim, peer: Peer, id_: str) -> None:
        self.supervisor = supervisor
        self.running = running
        self.peer = peer
        self.id = id_

    async def lose(self) -> None:
        """The supervisor is gone."""
        await self.peer.stream.aclose()

    async def next_supervisor(self) -> Peer:
        """The next connection, after the handshake was repeated and answered."""
        self.peer, attach = await self.supervisor.attached(numbered=True)
        assert attach["id"] == self.id
        again = await self.peer.receive()
        assert (again["method"], again["params"]) == ("initialize", INITIALIZE)
        await self.peer.send({"jsonrpc": "2.0", "id": again["id"], "result": {}})
        assert (await self.peer.receive())["method"] == "notifications/initialized"
        return self.peer


@asynccontextmanager
async def introduced(
    tmp_path: Path, variables: Mapping[str, str] | None = None
) -> AsyncGenerator[Bench]:
    async with fake_supervisor(tmp_path) as supervisor, shim(supervisor.path, variables) as running:
        peer, attach = await supervisor.attached(numbered=True)
        known = await running.start("initialize", INITIALIZE)
        await peer.receive()
        await peer.send({"jsonrpc": "2.0", "id": known, "result": {}})
        await running.receive()
        await running.notify("notifications/initialized")
        await peer.receive()
        assert peer.mark == ""  # nobody sends that again
        yield Bench(supervisor, running, peer, attach["id"])


async def answer(peer: Peer, known: int, text: str) -> None:
    result = {"content": [{"type": "text", "text": text}]}
    await peer.send({"jsonrpc": "2.0", "id": known, "result": result})


async def test_a_call_under_way_is_sent_again_and_answered_once(tmp_path: Path) -> None:
    async with introduced(tmp_path) as it:
        call = await it.running.start("tools/call", call_params(CODE))
        asked = await it.peer.receive()
        number = int(it.peer.mark)
        await it.peer.stream.send_all(b'{"jsonrpc":"2.0","id":%d,"res' % call)  # and dies
        await it.lose()
        await it.next_supervisor()
        assert await it.peer.receive() == asked
        mark, _, seconds = it.peer.mark.partition("+")
        assert int(mark) == number
        assert 0 <= float(seconds) < 100
        await answer(it.peer, call, "42")
        assert (await it.running.receive())["method"] == "notifications/tools/list_changed"
        only = await it.running.receive()
        assert (only["id"], text_of(only["result"])) == (call, "42")
        # Numbers go on, ids of the client or not.
        await it.running.start("tools/call", call_params(CODE))
        await it.peer.receive()
        assert int(it.peer.mark) == number + 1


async def test_lists_are_asked_for_again_as_they_were(tmp_path: Path) -> None:
    async with introduced(tmp_path) as it:
        listing = await it.running.start("tools/list")
        stream = await it.running.start("subscriptions/listen", {"_meta": {}})
        for _ in "12":
            await it.peer.receive()
        await it.lose()
        await it.next_supervisor()
        again = [(await it.peer.receive())["id"], (await it.peer.receive())["id"]]
        assert again == [listing, stream]
        assert "+" not in it.peer.mark
        await it.peer.send({"jsonrpc": "2.0", "id": listing, "result": {"tools": []}})
        assert (await it.running.receive())["method"] == "notifications/tools/list_changed"
        assert (await it.running.receive())["id"] == listing


async def test_an_answered_call_is_not_sent_again(tmp_path: Path) -> None:
    async with introduced(tmp_path) as it:
        first = await it.running.start("tools/call", call_params(CODE))
        second = await it.running.start("tools/call", call_params(CODE))
        for _ in "12":
            await it.peer.receive()
        await answer(it.peer, first, "one")
        await it.lose()
        assert (await it.running.receive())["id"] == first
        await it.next_supervisor()
        assert (await it.peer.receive())["id"] == second


async def test_a_call_that_did_not_arrive_is_sent_as_if_for_the_first_time(tmp_path: Path) -> None:
    async with introduced(tmp_path) as it:
        big = {**CODE, "code": "#" * 4_000_000}  # more than a socket's buffer holds
        call = await it.running.start("tools/call", call_params(big))
        await it.peer.stream.receive_some(1000)
        await it.lose()
        await it.next_supervisor()
        assert (await it.peer.receive())["id"] == call
        assert "+" not in it.peer.mark


async def test_a_call_outlives_several_supervisors(tmp_path: Path) -> None:
    async with introduced(tmp_path) as it:
        call = await it.running.start("tools/call", call_params(CODE))
        await it.peer.receive()
        for _ in range(3):
            await it.lose()
            await it.next_supervisor()
            assert (await it.peer.receive())["id"] == call
        # One goes before it has answered the attach line.
        await it.lose()
        early = await it.supervisor.accept()
        await early.receive()
        await early.stream.aclose()
        await it.next_supervisor()
        await it.peer.receive()
        await answer(it.peer, call, "42")
        assert program.MAX_LOSSES > 4
        while "id" not in (last := await it.running.receive()):
            pass
        assert text_of(last["result"]) == "42"


async def test_where_no_supervisor_can_start_the_reason_is_told_at_once(tmp_path: Path) -> None:
    variables = {"NSM_AUTOSTART": "1", "NSM_SUPERVISOR": "/nowhere/nsm-supervisor"}
    async with introduced(tmp_path, variables) as it:
        call = await it.running.start("tools/call", call_params(CODE))
        await it.peer.receive()
        await it.supervisor.close()
        await it.lose()
        told = await it.running.receive()
        assert told["id"] == call
        assert "/nowhere/nsm-supervisor" in text_of(told["result"])
        assert "whether its code ran, and how far, is unknown" in text_of(told["result"])
        later = await it.running.start("tools/call", call_params(CODE))
        told = await it.running.receive()
        assert told["id"] == later
        assert "/nowhere/nsm-supervisor" in text_of(told["result"])
        assert "The code was not run" in text_of(told["result"])


async def test_a_supervisor_that_was_shut_down_is_not_replaced(tmp_path: Path) -> None:
    async with introduced(tmp_path) as it:
        call = await it.running.start("tools/call", call_params(CODE))
        await it.peer.receive()
        await it.peer.stream.send_all(b'{"torn\n{"nsm": 1, "ending": true}\n')
        await it.lose()
        told = await it.running.receive()
        assert told["id"] == call
        assert "is unknown" in text_of(told["result"])
        # The next request wants one.
        call = await it.running.start("tools/call", call_params(CODE))
        await it.next_supervisor()
        assert (await it.peer.receive())["id"] == call


async def test_a_call_taken_back_is_not_sent_again(tmp_path: Path) -> None:
    async with introduced(tmp_path) as it:
        gone = await it.running.start("tools/call", call_params(CODE))
        kept = await it.running.start("tools/call", call_params(CODE))
        await it.running.notify("notifications/cancelled", {"requestId": gone})
        for _ in "123":
            await it.peer.receive()
        await it.lose()
        await it.next_supervisor()
        assert (await it.peer.receive())["id"] == kept


async def test_a_batch_is_sent_once(tmp_path: Path) -> None:
    async with introduced(tmp_path) as it:
        request = {"jsonrpc": "2.0", "id": 77, "method": "tools/call", "params": call_params(CODE)}
        await it.running.send([request])
        line = await it.peer.stream.receive_some(65536)
        assert line.startswith(b"[")
        await it.lose()
        told = await it.running.receive()
        assert (told["id"], told["result"]["isError"]) == (77, True)


async def test_an_older_supervisor_is_not_asked_for_what_it_cannot_know(tmp_path: Path) -> None:
    async with introduced(tmp_path) as it:
        call = await it.running.start("tools/call", call_params(CODE))
        listing = await it.running.start("tools/list")
        for _ in "12":
            await it.peer.receive()
        await it.lose()
        it.peer, _ = await it.supervisor.attached()
        methods = [(await it.peer.receive())["method"] for _ in range(3)]
        assert methods == ["initialize", "notifications/initialized", "tools/list"]
        assert it.peer.mark == ""
        await it.peer.send({"jsonrpc": "2.0", "id": listing, "result": {"tools": []}})
        told: dict[int, Message] = {}
        while len(told) < 2:
            message = await it.running.receive()
            if "id" in message:
                told[message["id"]] = message
        assert "is unknown" in text_of(told[call]["result"])
        assert told[listing]["result"] == {"tools": []}


async def test_the_handshake_itself_is_sent_again(tmp_path: Path) -> None:
    async with fake_supervisor(tmp_path) as supervisor, shim(supervisor.path) as running:
        peer, _ = await supervisor.attached(numbered=True)
        known = await running.start("initialize", INITIALIZE)
        await peer.receive()
        await peer.stream.aclose()
        peer, _ = await supervisor.attached(numbered=True)
        assert (await peer.receive())["id"] == known
        await peer.send({"jsonrpc": "2.0", "id": known, "result": {"from": "the second"}})
        assert (await running.receive())["result"] == {"from": "the second"}


async def test_a_client_that_has_closed_its_end_still_gets_its_answers(tmp_path: Path) -> None:
    async with introduced(tmp_path) as it:
        call = await it.running.start("tools/call", call_params(CODE))
        await it.peer.receive()
        await it.running.stdin.aclose()
        await trio.lowlevel.checkpoint()
        await it.lose()
        await it.next_supervisor()
        await it.peer.receive()
        await answer(it.peer, call, "42")
        while "id" not in (last := await it.running.receive()):
            pass
        assert text_of(last["result"]) == "42"
        assert await it.running.ended() == 0
