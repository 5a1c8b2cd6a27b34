"""One connection, over memory: what a client can do to us is bounded."""

from __future__ import annotations

import logging
import math
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import h11
import pytest
import trio
import trio.testing

from nsm.http import connection as limits
from nsm.http.access import AccessCheck
from nsm.http.connection import SMALL_BYTES, Application, Bodies, Connection, Receive, Send, Served
from nsm.http.listening import ConnectionLimit
from nsm.http.token import TokenFile

TOKEN = "t" * 43
HEAD = f"Host: a\r\nAuthorization: Bearer {TOKEN}\r\n"
MAX_BODY = 1_000_000
CHUNKED = "Transfer-Encoding: chunked\r\n"
LINES = "X:\r\n" * limits.MAX_HEAD_LINES
TABBED = "X:" + 3000 * "\t"
SPACED = "X:" + 3000 * " "
"""A head in whose spaces h11 would be quadratic, at a mistake behind them."""


async def echo(scope: dict[str, Any], receive: Receive, send: Send) -> None:
    """Answers with the body that came."""
    message = await receive()
    await answer(send, message["body"])


async def answer(send: Send, body: bytes, status: int = 200) -> None:
    headers = [(b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


class Peer:
    """The client's end.

    Attributes:
        refused: why requests were.
    """

    def __init__(self, stream: trio.abc.HalfCloseableStream, connection: Connection) -> None:
        self.stream = stream
        self.connection = connection
        self.refused: list[str] = []
        self._h11 = h11.Connection(h11.CLIENT)

    async def send(self, head: str, body: bytes = b"") -> None:
        await self.stream.send_all(head.encode() + body)

    async def post(self, body: bytes = b"", headers: str = HEAD) -> None:
        head = f"POST /mcp HTTP/1.1\r\n{headers}Content-Length: {len(body)}\r\n\r\n"
        await self.send(head, body)

    async def answer(self) -> tuple[h11.Response, bytes]:
        """The next one."""
        self._h11 = h11.Connection(h11.CLIENT)
        self._h11.send(h11.Request(method="GET", target="/", headers=[("host", "a")]))
        self._h11.send(h11.EndOfMessage())
        head: h11.Response | None = None
        body = b""
        while not isinstance(event := self._h11.next_event(), h11.EndOfMessage):
            if event is h11.NEED_DATA:
                self._h11.receive_data(bytes(await self.stream.receive_some(65536)))
            elif isinstance(event, h11.Response):
                head = event
            elif isinstance(event, h11.Data):
                body += event.data
            else:
                raise AssertionError(event)
        assert head is not None
        return head, body

    async def status(self) -> int:
        return int((await self.answer())[0].status_code)

    async def closed(self) -> bytes:
        """Read until the other side closes."""
        got = b""
        while data := await self.stream.receive_some(65536):
            got += data
        return got


Serve = Callable[..., Any]


@pytest.fixture
def serve(tmp_path: Path) -> Serve:
    file = tmp_path / "http-token"
    file.write_text(TOKEN)
    file.chmod(0o600)
    guard = AccessCheck(hosts=None, secret=TokenFile(str(file)))

    @asynccontextmanager
    async def serve(
        application: Application = echo,
        pair: Callable[[], tuple[Any, Any]] = trio.testing.memory_stream_pair,
        bodies: int = 4 * MAX_BODY,
    ) -> AsyncGenerator[Peer]:
        ours, theirs = pair()
        refused: list[str] = []
        served = Served(
            guard=guard,
            application=application,
            refused=refused.append,
            admitted=lambda: None,
            max_body_bytes=MAX_BODY,
            bodies=Bodies(bodies),
        )
        peer = Peer(theirs, Connection(ours, served, "test"))
        peer.refused = refused
        async with trio.open_nursery() as nursery:
            nursery.start_soon(peer.connection.serve)
            yield peer
            nursery.cancel_scope.cancel()

    return serve


async def test_requests_that_are_sent_ahead_are_answered_in_order(serve: Serve) -> None:
    async with serve() as peer:
        one = f"POST /mcp HTTP/1.1\r\n{HEAD}Content-Length: 1\r\n\r\n"
        await peer.send(one + "1" + one + "2" + one + "3")
        got = b""
        while got.count(b"HTTP/1.1 200") < 3 or not got.endswith(b"3"):
            got += await peer.stream.receive_some(65536)
        assert [part[-1:] for part in got.split(b"HTTP/1.1 200")[1:]] == [b"1", b"2", b"3"]


async def test_the_application_sees_no_secret(serve: Serve) -> None:
    seen: dict[str, Any] = {}

    async def look(scope: dict[str, Any], receive: Receive, send: Send) -> None:
        seen.update(scope)
        await answer(send, b"")

    async with serve(look) as peer:
        await peer.post(headers=HEAD + "Cookie: a=b\r\nX-Other: c\r\n")
        assert await peer.status() == 200
    assert (b"x-other", b"c") in seen["headers"]
    assert TOKEN not in repr(seen)
    assert not {b"authorization", b"cookie"} & {name for name, _ in seen["headers"]}


# Who is not let in.


async def test_no_body_of_a_refused_client_is_read(serve: Serve) -> None:
    async with serve() as peer:
        await peer.send("POST /mcp HTTP/1.1\r\nHost: a\r\nContent-Length: 999999\r\n\r\n")
        head, _ = await peer.answer()
        assert head.status_code == 401
        assert (b"connection", b"close") in list(head.headers)
        assert not peer.connection.admitted
        await peer.closed()
        assert peer.refused == ["token"]


async def test_a_refused_client_that_goes_on_sending_reads_the_answer(
    serve: Serve, autojump_clock: trio.testing.MockClock
) -> None:
    async with serve() as peer:
        await peer.send("POST /mcp HTTP/1.1\r\nHost: a\r\nContent-Length: 999999999\r\n\r\n")
        assert await peer.status() == 401
        for _ in range(50):
            await peer.stream.send_all(bytes(65536))
        began = trio.current_time()
        await peer.closed()
        assert trio.current_time() - began == 0  # its side of the connection is over at once
        await trio.sleep(limits.LINGER_S)
        with pytest.raises(trio.BrokenResourceError):
            await peer.stream.send_all(b"more")


async def test_a_client_is_told_to_send_its_body_after_the_check(serve: Serve) -> None:
    expecting = "Expect: 100-continue\r\nContent-Length: 2\r\n\r\n"
    async with serve() as peer:
        await peer.send(f"POST /mcp HTTP/1.1\r\nHost: a\r\n{expecting}")
        assert (await peer.closed()).startswith(b"HTTP/1.1 401")
    async with serve() as peer:
        await peer.send(f"POST /mcp HTTP/1.1\r\n{HEAD}{expecting}")
        assert (await peer.stream.receive_some(100)).startswith(b"HTTP/1.1 100")
        await peer.send("ok")
        assert (await peer.answer())[1] == b"ok"


@pytest.mark.parametrize(
    ("sent", "status", "why"),
    [
        ("nonsense\r\n\r\n", 400, "protocol"),
        ("GET /mcp HTTP/1.1\r\n\r\n", 400, "protocol"),
        ("GET /mcp HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n", 400, "protocol"),
        ("POST /mcp HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n", 400, 0),
        ("POST /mcp HTTP/1.1\r\nHost: a\r\nContent-Length: -1\r\n\r\n", 400, "protocol"),
        ("POST /mcp HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: gzip\r\n\r\n", 501, "protocol"),
        ("GET /mcp HTTP/1.1\r\nHost : a\r\n\r\n", 400, "protocol"),
        ("GET /mcp HTTP/1.1\r\nHost: a\r\n folded: b\r\n\r\n", 401, "token"),
        ("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 505, "protocol"),
        ("\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n", 400, "protocol"),
        (f"GET /mcp HTTP/1.1\r\nHost: a\r\nX: {'x' * limits.MAX_HEAD_BYTES}", 431, "protocol"),
        (f"GET /mcp HTTP/1.1\r\n{HEAD}X: {'x' * limits.MAX_HEAD_BYTES}\r\n\r\n", 431, "protocol"),
        (f"GET /mcp HTTP/1.1\r\n{HEAD}{LINES}\r\n", 431, "protocol"),
        (f"GET /mcp HTTP/1.1\r\n{HEAD}{SPACED}\r\n\r\n", 431, "protocol"),
        (f"GET /mcp HTTP/1.1\r\n{HEAD}{TABBED}", 431, "protocol"),
        (f"POST /mcp HTTP/1.1\r\n{HEAD}{CHUNKED}\r\n0\r\n{SPACED}", 400, "protocol"),
        (f"POST /mcp HTTP/1.1\r\n{HEAD}{CHUNKED}\r\n5;{SPACED}", 400, "protocol"),
        ("GET / HTTP/1.0\r\n\r\n", 401, "token"),
    ],
)
async def test_bytes_that_are_no_request_are_refused(
    serve: Serve, sent: str, status: int, why: str | int
) -> None:
    async with serve() as peer:
        await peer.send(sent)
        got = await peer.closed()
        assert got.startswith(b"HTTP/1.1 %d" % status), got
        assert why in (0, *peer.refused)


@pytest.mark.parametrize(("headers", "status"), [("Host: a\r\n", 401), (HEAD, 405)])
async def test_an_answer_to_head_has_no_body(
    serve: Serve, headers: str, status: int, caplog: pytest.LogCaptureFixture
) -> None:
    async with serve() as peer:
        await peer.send(f"HEAD /mcp HTTP/1.1\r\n{headers}\r\n")
        got = await peer.closed()
        assert got.startswith(b"HTTP/1.1 %d" % status), got
        assert got.endswith(b"\r\n\r\n")
    assert not caplog.records


@pytest.mark.parametrize(
    "upgrade",
    [
        "Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABk\r\n",
        "Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Key: AA==\r\n",
    ],
)
async def test_a_connection_is_never_upgraded(serve: Serve, upgrade: str) -> None:
    async with serve() as peer:
        await peer.post(b"as before", headers=HEAD + upgrade)
        head, body = await peer.answer()
        assert (head.status_code, body) == (200, b"as before")


async def test_a_body_of_two_lengths_is_not_two_requests(serve: Serve) -> None:
    async with serve() as peer:
        hidden = f"POST /mcp HTTP/1.1\r\n{HEAD}Content-Length: 6\r\n\r\nhidden"
        headers = f"{HEAD}Content-Length: {len(hidden) + 5}\r\nTransfer-Encoding: chunked\r\n"
        await peer.send(f"POST /mcp HTTP/1.1\r\n{headers}\r\n0\r\n\r\n{hidden}")
        got = await peer.closed()
        assert got.startswith(b"HTTP/1.1 400")
        assert b"hidden" not in got


# How much.


async def test_a_body_that_says_that_it_is_too_large_is_not_read(serve: Serve) -> None:
    async with serve() as peer:
        await peer.send(f"POST /mcp HTTP/1.1\r\n{HEAD}Content-Length: {MAX_BODY + 1}\r\n\r\n")
        assert await peer.status() == 413
        assert peer.refused == ["body"]


async def test_a_chunked_body_that_grows_too_large_is_not_read(serve: Serve) -> None:
    async with serve() as peer:
        await peer.send(f"POST /mcp HTTP/1.1\r\n{HEAD}Transfer-Encoding: chunked\r\n\r\n")
        piece = b"10000\r\n" + bytes(65536) + b"\r\n"
        for _ in range(MAX_BODY // 65536 + 1):
            await peer.stream.send_all(piece)
        assert await peer.status() == 413


async def test_all_bodies_together_have_a_bound_until_they_are_answered(serve: Serve) -> None:
    go_on = trio.Event()

    async def slow(scope: dict[str, Any], receive: Receive, send: Send) -> None:
        await go_on.wait()
        await echo(scope, receive, send)

    size = SMALL_BYTES * 3
    async with serve(slow, bodies=size) as first:
        await first.post(bytes(size))
        await trio.testing.wait_all_tasks_blocked()
        served = first.connection._served  # pyright: ignore[reportPrivateUsage]
        ours, theirs = trio.testing.memory_stream_pair()
        second = Peer(theirs, Connection(ours, served, "second"))
        async with trio.open_nursery() as nursery:
            nursery.start_soon(second.connection.serve)
            await second.post(bytes(size))
            head, _ = await second.answer()
            assert (head.status_code, dict(head.headers)[b"retry-after"]) == (503, b"1")
            assert first.refused == ["memory"]
            nursery.cancel_scope.cancel()
        go_on.set()
        assert await first.status() == 200
        await trio.testing.wait_all_tasks_blocked()
        assert served.bodies.taken == 0


# How long.


async def test_a_silent_client_is_disconnected(
    serve: Serve, autojump_clock: trio.testing.MockClock
) -> None:
    async with serve() as peer:
        assert await peer.closed() == b""
        assert trio.current_time() == limits.HEAD_TIMEOUT_S
        assert peer.refused == []


async def test_a_head_sent_byte_by_byte_times_out(
    serve: Serve, autojump_clock: trio.testing.MockClock
) -> None:
    async with serve() as peer, trio.open_nursery() as nursery:

        async def drip() -> None:
            for byte in f"POST /mcp HTTP/1.1\r\n{HEAD}":
                await peer.send(byte)
                await trio.sleep(1)

        nursery.start_soon(drip)
        got = await peer.closed()
        assert got.startswith(b"HTTP/1.1 408")
        assert trio.current_time() == limits.HEAD_TIMEOUT_S
        assert peer.refused == ["slow"]
        nursery.cancel_scope.cancel()


async def test_the_next_head_has_to_be_as_quick(
    serve: Serve, autojump_clock: trio.testing.MockClock
) -> None:
    async with serve() as peer:
        await peer.post()
        assert await peer.status() == 200
        await trio.sleep(60)
        await peer.send("POST")
        assert (await peer.closed()).startswith(b"HTTP/1.1 408")
        assert trio.current_time() == 60 + limits.HEAD_TIMEOUT_S


async def test_a_connection_is_kept_for_a_while(
    serve: Serve, autojump_clock: trio.testing.MockClock
) -> None:
    async with serve() as peer:
        await peer.post()
        assert await peer.status() == 200
        assert await peer.closed() == b""
        assert trio.current_time() == limits.KEEP_ALIVE_S


async def test_a_body_sent_byte_by_byte_times_out(
    serve: Serve, autojump_clock: trio.testing.MockClock
) -> None:
    async with serve() as peer, trio.open_nursery() as nursery:

        async def drip() -> None:
            await peer.send(f"POST /mcp HTTP/1.1\r\n{HEAD}Content-Length: 1000\r\n\r\n")
            for _ in range(1000):
                await peer.send("x")
                await trio.sleep(1)

        nursery.start_soon(drip)
        assert (await peer.closed()).startswith(b"HTTP/1.1 408")
        assert trio.current_time() == limits.BODY_TIMEOUT_S
        nursery.cancel_scope.cancel()


async def test_a_client_that_does_not_read_is_disconnected_and_the_application_told(
    serve: Serve, autojump_clock: trio.testing.MockClock
) -> None:
    learned: list[float] = []

    async def flood(scope: dict[str, Any], receive: Receive, send: Send) -> None:
        await receive()
        await send({"type": "http.response.start", "status": 200, "headers": []})
        async with trio.open_nursery() as nursery:

            async def wait() -> None:
                assert (await receive())["type"] == "http.disconnect"
                learned.append(trio.current_time())
                nursery.cancel_scope.cancel()

            nursery.start_soon(wait)
            while True:
                await send({"type": "http.response.body", "body": bytes(65536), "more_body": True})

    async with serve(flood, trio.testing.lockstep_stream_pair) as peer:
        await peer.post()
        await trio.sleep(2 * limits.WRITE_TIMEOUT_S)
    assert learned == [limits.WRITE_TIMEOUT_S]


async def test_a_connection_ends_at_once_whatever_the_client_does(serve: Serve) -> None:
    async def flood(scope: dict[str, Any], receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        while True:
            await send({"type": "http.response.body", "body": bytes(65536), "more_body": True})

    with trio.fail_after(5):
        async with serve(flood, trio.testing.lockstep_stream_pair) as peer:
            await peer.post()
            await trio.testing.wait_all_tasks_blocked()


# The application.


async def test_a_client_that_goes_is_told_of(serve: Serve) -> None:
    said: list[str] = []

    async def wait(scope: dict[str, Any], receive: Receive, send: Send) -> None:
        said.append((await receive())["type"])
        said.append((await receive())["type"])
        await answer(send, b"for nobody")

    async with serve(wait) as peer:
        await peer.post()
        await trio.testing.wait_all_tasks_blocked()
        await peer.stream.aclose()
        await trio.testing.wait_all_tasks_blocked()
    assert said == ["http.request", "http.disconnect"]


async def test_an_answer_in_pieces_comes_as_it_is_made(serve: Serve) -> None:
    async def stream(scope: dict[str, Any], receive: Receive, send: Send) -> None:
        kind = [(b"content-type", b"text/event-stream"), (b"connection", b"keep-alive")]
        await send({"type": "http.response.start", "status": 200, "headers": kind})
        for number in range(3):
            await send(
                {"type": "http.response.body", "body": b"data: %d\n\n" % number, "more_body": True}
            )
        await send({"type": "http.response.body", "body": b""})

    async with serve(stream) as peer:
        await peer.post()
        head, body = await peer.answer()
        assert body == b"data: 0\n\ndata: 1\n\ndata: 2\n\n"
        assert b"connection" not in dict(head.headers)
        await peer.post()  # and the connection goes on
        assert await peer.status() == 200


async def _fails(scope: dict[str, Any], receive: Receive, send: Send) -> None:
    raise ValueError("a fault of ours")


async def _fails_in_the_middle(scope: dict[str, Any], receive: Receive, send: Send) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b"half", "more_body": True})
    raise ValueError("a fault of ours")


async def _says_nothing(scope: dict[str, Any], receive: Receive, send: Send) -> None:
    await receive()


@pytest.mark.parametrize(
    ("application", "begins"),
    [(_fails, b"HTTP/1.1 500"), (_fails_in_the_middle, b"HTTP/1.1 200"), (_says_nothing, b"")],
)
async def test_a_fault_ends_its_connection_and_is_logged_without_the_token(
    serve: Serve,
    application: Callable[..., Awaitable[None]],
    begins: bytes,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.DEBUG)
    async with serve(application) as peer:
        await peer.post(b"{}")
        got = await peer.closed()
        assert got.startswith(begins)
        assert b"fault of ours" not in got
    if application is not _says_nothing:
        assert "a request over HTTP failed" in caplog.text
    assert TOKEN not in caplog.text


# Choice of the connection that is closed to make room for another.


class FakeConnection:
    """Connection with the parts that the connection limit looks at.

    Attributes:
        ended: it was told to go.
    """

    def __init__(self, *, admitted: bool = False, waiting_since_s: float = math.inf) -> None:
        self.admitted = admitted
        self.waiting_since_s = waiting_since_s
        self.ended = False

    def end(self) -> None:
        self.ended = True


def limit_of(*connections: FakeConnection) -> ConnectionLimit:
    limit = ConnectionLimit(len(connections))
    for connection in connections:
        assert limit.admit(connection)  # type: ignore[arg-type]
    return limit


def stranger(waiting_since_s: float = math.inf) -> FakeConnection:
    return FakeConnection(waiting_since_s=waiting_since_s)


def idle(waiting_since_s: float) -> FakeConnection:
    return FakeConnection(admitted=True, waiting_since_s=waiting_since_s)


def busy() -> FakeConnection:
    return FakeConnection(admitted=True)


@pytest.mark.parametrize(
    ("connections", "ended"),
    [
        ([idle(1), stranger(3), stranger(2)], [2, 1, 0]),
        ([busy(), idle(3), idle(2)], [2, 1]),
        ([busy(), stranger()], [1]),
        ([busy(), busy()], []),
    ],
    ids=["strangers first", "then idle ones", "a stranger whose request is read", "nobody"],
)
def test_room_for_a_newcomer_is_made_by_the_oldest_of_least_standing(
    connections: list[FakeConnection], ended: list[int]
) -> None:
    limit = limit_of(*connections)
    left = [*connections]
    for number in ended:
        assert limit.admit(busy())  # type: ignore[arg-type]
        gone = [each for each in left if each.ended]
        assert gone == [connections[number]]
        left.remove(gone[0])
    assert not limit.admit(stranger())  # type: ignore[arg-type]
    assert not any(each.ended for each in left)


def test_another_token_ends_those_who_came_with_the_old_one() -> None:
    with_it, other = busy(), stranger()
    limit_of(with_it, other).end_admitted()
    assert (with_it.ended, other.ended) == (True, False)
