"""Events that are kept for streams that break off and are taken up again."""

from __future__ import annotations

import json
from typing import Any

import pytest
import trio
import trio.testing
from mcp.server.streamable_http import EventMessage
from mcp_types import JSONRPCError, JSONRPCMessage, JSONRPCNotification, JSONRPCResponse

from nsm.http.connection import Message, Receive, Send
from nsmd.http import asgi_app
from nsmd.http.asgi_app import Replays, SentEvents

IDLE_S = 100.0


def note(text: str = "") -> JSONRPCNotification:
    return JSONRPCNotification(jsonrpc="2.0", method="m", params={"text": text})


def answer(text: str = "", known: int = 1) -> JSONRPCResponse:
    return JSONRPCResponse(jsonrpc="2.0", id=known, result={"text": text})


def shown(message: JSONRPCMessage) -> str:
    match message:
        case JSONRPCNotification(params=dict(params)):
            return str(params["text"])
        case JSONRPCResponse(result=result):
            return f"={result['text']}"
        case JSONRPCError(error=error):
            return f"!{error.message}"
        case _:
            raise AssertionError(message)


class Listener:
    """Takes what is replayed."""

    def __init__(self) -> None:
        self.got: list[str] = []
        self.ids: list[str | None] = []
        self.ended = False

    async def take(self, event: EventMessage) -> None:
        self.got.append(shown(event.message))
        self.ids.append(event.event_id)
        await trio.lowlevel.checkpoint()

    async def listen(self, kept: SentEvents, event_id: str) -> None:
        await kept.replay(event_id, self.take)
        self.ended = True


async def test_later_events_come_once_and_in_order_up_to_the_answer() -> None:
    kept, listener = SentEvents(), Listener()
    first = kept.add(1, "7", None)
    kept.add(2, "8", note("another's"))
    second = kept.add(3, "7", note("a"))
    kept.add(4, "7", note("b"))
    async with trio.open_nursery() as tasks:
        tasks.start_soon(listener.listen, kept, first)
        await trio.testing.wait_all_tasks_blocked()
        assert listener.got == ["a", "b"]
        kept.add(5, "8", answer("another's", 8))
        kept.add(6, "7", note("c"))
        kept.add(7, "7", note("d"))
        await trio.testing.wait_all_tasks_blocked()
        assert not listener.ended
        last = kept.add(8, "7", answer("all"))
    assert listener.ended
    assert listener.got == ["a", "b", "c", "d", "=all"]
    assert listener.ids[-1] == last
    later = Listener()
    await later.listen(kept, second)
    assert later.got == ["b", "c", "d", "=all"]
    assert kept.follows(second)
    assert not kept.follows(last)


async def test_an_event_that_comes_during_a_replay_is_not_lost() -> None:
    kept, listener = SentEvents(), Listener()
    first = kept.add(1, "7", None)
    kept.add(2, "7", note("a"))

    async def take(event: EventMessage) -> None:
        await listener.take(event)
        if listener.got == ["a"]:
            kept.add(3, "7", answer("all"))

    await kept.replay(first, take)
    assert listener.got == ["a", "=all"]


@pytest.mark.parametrize("event_id", ["", "x", "1", "1-", "-1", "9-9", "1-x", "²-1", "1" * 99])
async def test_nothing_follows_an_unknown_event(event_id: str) -> None:
    kept, listener = SentEvents(), Listener()
    kept.add(1, "7", note("a"))
    assert not kept.follows(event_id)
    await listener.listen(kept, event_id)
    assert listener.got == []


async def test_an_id_that_is_used_again_is_another_stream() -> None:
    kept, listener = SentEvents(), Listener()
    first = kept.add(1, "7", note("a"))
    kept.add(2, "7", answer("b"))
    again = kept.add(3, "7", note("c"))
    kept.add(4, "7", answer("d"))
    await listener.listen(kept, first)
    await listener.listen(kept, again)
    assert listener.got == ["=b", "=d"]


async def test_the_oldest_goes_first_and_the_answer_stays() -> None:
    kept, listener = SentEvents(), Listener()
    first = kept.add(1, "7", None)
    for number in range(2, 100):
        kept.add(number, "7", note(f"{number} {'x' * 100_000}"))
        assert kept.size <= asgi_app.MAX_BYTES_OF_SESSION
    kept.add(100, "7", answer("all"))
    await listener.listen(kept, first)
    assert 30 < len(listener.got) < 45
    assert listener.got[-2][:3] == "99 "
    assert listener.got[-1] == "=all"


async def test_a_client_is_told_of_an_answer_too_large_to_keep() -> None:
    kept, listener = SentEvents(), Listener()
    first = kept.add(1, "7", None)
    kept.add(2, "7", note("x" * asgi_app.MAX_BYTES_OF_SESSION))
    kept.add(3, "7", answer("x" * asgi_app.MAX_BYTES_OF_SESSION))
    assert kept.size < 10_000
    await listener.listen(kept, first)
    (told,) = listener.got
    assert "was lost with the connection" in told
    assert "The call was carried out" in told


async def test_the_number_of_streams_is_bounded() -> None:
    kept = SentEvents()
    waiting = kept.add(1, "waiting", None)
    for number in range(2, 2 * asgi_app.MAX_STREAMS):
        kept.add(number, f"r{number}", answer(str(number)))
    assert f"of {asgi_app.MAX_STREAMS} streams" in repr(kept)
    assert kept.follows(waiting)


async def test_at_the_end_nobody_waits_and_nothing_is_kept() -> None:
    kept, listener = SentEvents(), Listener()
    first = kept.add(1, "7", note("a"))
    async with trio.open_nursery() as tasks:
        tasks.start_soon(listener.listen, kept, first)
        await trio.testing.wait_all_tasks_blocked()
        kept.end()
    assert listener.ended
    kept.add(2, "7", note("b"))
    kept.add(3, "8", note("c"))
    assert (kept.size, kept.follows(first)) == (0, False)


# Whose it is.


class Manager:
    """Stand-in for the package's manager: each request says what it does."""

    def __init__(self) -> None:
        self.replays = Replays(IDLE_S, 100)

    async def ask(self, *, known: str = "", method: str = "POST", **does: Any) -> list[Message]:
        """
        Args:
            does: `opens` a session, `status`, `stores` texts in a stream, `after` an event.
        """
        headers = [(b"mcp-session-id", known.encode())] if known else []
        if "after" in does:
            headers.append((b"last-event-id", does["after"].encode()))
        sent: list[Message] = []

        async def application(scope: dict[str, Any], receive: Receive, send: Send) -> None:
            del scope, receive
            ids = [await self.replays.store_event("7", note(x)) for x in does.get("stores", ())]
            sent.extend({"id": each} for each in ids)
            opened = [(b"mcp-session-id", does["opens"].encode())] if "opens" in does else []
            start = {"type": "http.response.start", "status": does.get("status", 200)}
            await send({**start, "headers": opened})
            if "after" in does:
                listener = Listener()
                with trio.move_on_after(1):
                    await self.replays.replay_events_after(does["after"], listener.take)
                sent.append({"got": listener.got})

        async def receive() -> Message:
            raise AssertionError

        async def send(message: Message) -> None:
            sent.append(message)
            await trio.lowlevel.checkpoint()

        scope = {"type": "http", "method": method, "headers": headers}
        await self.replays.serve(application, scope, receive, send)
        return sent


async def test_each_session_has_its_own(autojump_clock: trio.testing.MockClock) -> None:
    manager = Manager()
    await manager.ask(opens="a")
    await manager.ask(opens="b")
    (first, *_) = await manager.ask(known="a", stores=["1", "2"])
    assert (await manager.ask(known="a", method="GET", after=first["id"]))[-1] == {"got": ["2"]}
    start, body = await manager.ask(known="b", method="GET", after=first["id"])
    assert (start["status"], json.loads(body["body"])["error"]["code"]) == (410, -32600)


@pytest.mark.parametrize(("method", "status"), [("DELETE", 200), ("POST", 404)])
async def test_with_the_session_its_events_go(method: str, status: int) -> None:
    manager = Manager()
    await manager.ask(opens="a")
    await manager.ask(known="a", stores=["1"])
    assert manager.replays.size > 0
    await manager.ask(known="a", method=method, status=status)
    assert repr(manager.replays) == "<Replays of 0 sessions, 0 bytes>"


async def test_a_session_that_was_not_opened_has_none() -> None:
    manager = Manager()
    await manager.ask(opens="a", status=400, stores=["1"])
    await manager.ask(known="b", status=404, stores=["1"])
    assert repr(manager.replays) == "<Replays of 0 sessions, 0 bytes>"


async def test_a_session_that_nobody_uses_is_over_as_the_package_has_it(
    autojump_clock: trio.testing.MockClock,
) -> None:
    manager = Manager()
    await manager.ask(opens="a", stores=["1"])
    await manager.ask(opens="b", stores=["1"])
    await trio.sleep(IDLE_S - 1)
    await manager.ask(known="b")
    assert "of 2 sessions" in repr(manager.replays)
    await trio.sleep(2)
    await manager.ask(known="b")
    assert "of 1 sessions" in repr(manager.replays)


async def test_all_together_are_bounded_and_the_oldest_goes() -> None:
    manager = Manager()
    sessions = [str(number) for number in range(12)]
    text = "x" * 3_500_000
    for session in sessions:
        await manager.ask(opens=session)
        await manager.ask(known=session, stores=["", text])
        assert manager.replays.size <= asgi_app.MAX_BYTES
    assert manager.replays.size > asgi_app.MAX_BYTES - 4_000_000
