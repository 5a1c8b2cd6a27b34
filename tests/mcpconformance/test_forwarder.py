"""Messages that pass the forwarder, and its changes to them."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from functools import partial
from urllib.parse import urlsplit

import pytest
import trio

from mcpconformance.forwarder import MAX_HEAD_BYTES, edited, forwarder

OWN, TARGET, TOKEN = b"127.0.0.1:1", b"127.0.0.1:7643", b"secret"


@pytest.mark.parametrize(
    ("given", "seen"),
    [
        (b"Host: 127.0.0.1:1", b"Host: 127.0.0.1:7643"),
        (b"Host: evil.example.com", b"Host: evil.example.com"),
        (b"host:127.0.0.1:10", b"host:127.0.0.1:10"),
        (b"Origin: http://127.0.0.1:1", b"Origin: http://127.0.0.1:7643"),
        (b"Origin: http://evil.example.com", b"Origin: http://evil.example.com"),
        (b"Mcp-Name:  odd  ", b"Mcp-Name:  odd  "),
    ],
)
def test_addresses_of_its_own_become_those_of_the_server(given: bytes, seen: bytes) -> None:
    head = b"POST /mcp HTTP/1.1\r\n" + given + b"\r\nConnection: keep-alive\r\n\r\n"
    assert edited(head, own=OWN, target=TARGET, token=TOKEN) == (
        b"POST /mcp HTTP/1.1\r\n" + seen + b"\r\nAuthorization: Bearer secret\r\n"
        b"Connection: close\r\n\r\n"
    )


def test_a_token_that_is_there_stays() -> None:
    head = b"GET / HTTP/1.1\r\nauthorization: Bearer other\r\n\r\n"
    assert edited(head, own=OWN, target=TARGET, token=TOKEN) == (
        b"GET / HTTP/1.1\r\nauthorization: Bearer other\r\nConnection: close\r\n\r\n"
    )


class Server:
    """Answers each connection with what the test says; has what came."""

    def __init__(self) -> None:
        self.answer = b"HTTP/1.1 200 OK\r\n\r\nfine"
        self.came = b""
        self.gone = trio.Event()
        self.begun = trio.Event()
        self.stay = False

    async def serve(self, stream: trio.SocketStream) -> None:
        while not self.came.endswith(b"!"):
            chunk = await stream.receive_some()
            if not chunk:
                break
            self.came += chunk
        await stream.send_all(self.answer)
        self.begun.set()
        if self.stay:
            assert await stream.receive_some() == b""
        self.gone.set()


@asynccontextmanager
async def between(server: Server) -> AsyncGenerator[trio.SocketStream, None]:
    """A connection to a forwarder before that server."""
    async with trio.open_nursery() as nursery:
        serve = partial(trio.serve_tcp, server.serve, 0, host="127.0.0.1")
        (listener,) = await nursery.start(serve)
        port = listener.socket.getsockname()[1]
        async with forwarder("127.0.0.1", port, "secret") as url:
            parts = urlsplit(url)
            assert parts.port is not None
            async with await trio.open_tcp_stream("127.0.0.1", parts.port) as stream:
                yield stream
        nursery.cancel_scope.cancel()


async def received(stream: trio.SocketStream) -> bytes:
    return b"".join([chunk async for chunk in stream])


async def test_body_and_answer_pass_as_they_are() -> None:
    server = Server()
    body = bytes(range(256)) * 1024 + b"!"
    server.answer = b"HTTP/1.1 418 x\r\n\r\n" + body
    async with between(server) as stream:
        await stream.send_all(b"POST /mcp HTTP/1.1\r\nHost: evil\r\n\r\n" + body[:10])
        await stream.send_all(body[10:])
        assert await received(stream) == server.answer
    head, _, rest = server.came.partition(b"\r\n\r\n")
    assert head.split(b"\r\n") == [
        b"POST /mcp HTTP/1.1",
        b"Host: evil",
        b"Authorization: Bearer secret",
        b"Connection: close",
    ]
    assert rest == body


async def test_a_client_that_goes_away_is_gone_for_the_server() -> None:
    server = Server()
    server.stay = True
    async with between(server) as stream:
        await stream.send_all(b"GET /mcp HTTP/1.1\r\n\r\n!")
        await server.begun.wait()
        await stream.aclose()
        await server.gone.wait()


async def test_no_head_reaches_nobody() -> None:
    server = Server()
    async with between(server) as stream:
        await stream.send_all(b"x" * (MAX_HEAD_BYTES + 1))
        # It is closed with what it did not read: that arrives as a reset, or as an end.
        with suppress(trio.BrokenResourceError):
            assert await received(stream) == b""
    assert server.came == b""
