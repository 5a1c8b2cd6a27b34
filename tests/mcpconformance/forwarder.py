"""A way in for programs that cannot show a token: it puts one into each request.

The conformance suite sends no `Authorization`, and has no option for it. What it asks goes through
here: each connection is one request (`Connection: close`), whose head gets the token, and the
address that its client meant in place of this one's. Everything else passes byte for byte, a wrong
`Host` and `Origin` too, and all of the answer: what is checked is what the server said.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from functools import partial

import trio

MAX_HEAD_BYTES = 64 * 1024


def edited(head: bytes, *, own: bytes, target: bytes, token: bytes) -> bytes:
    """The head of a request as the server is to see it.

    Args:
        head: request line and headers, up to the empty line, which is included.
        own, target: `host:port` of here and of the server.
        token: that the server wants to see; one that is there already stays.
    """
    line, *headers = head.removesuffix(b"\r\n\r\n").split(b"\r\n")
    kept: list[bytes] = []
    shown = False
    for header in headers:
        name, _, value = header.partition(b":")
        match name.strip().lower(), value.strip():
            case b"connection" | b"keep-alive", _:
                continue
            case b"host", value if value == own:
                kept.append(b"Host: " + target)
            case b"origin", value if value == b"http://" + own:
                kept.append(b"Origin: http://" + target)
            case name, _:
                shown = shown or name == b"authorization"
                kept.append(header)
    if not shown:
        kept.append(b"Authorization: Bearer " + token)
    return b"\r\n".join((line, *kept, b"Connection: close", b"", b""))


@asynccontextmanager
async def forwarder(target: str, token: str) -> AsyncGenerator[str, None]:
    """Forward to a server on loopback as long as the block lasts.

    Args:
        target: `host:port` of the server.
        token: that it wants to see.

    Yields:
        The URL of the endpoint, for who has no token.
    """
    host, _, port = target.partition(":")

    async def serve(client: trio.SocketStream) -> None:
        own = b"127.0.0.1:%d" % client.socket.getsockname()[1]
        # Whoever goes away in the middle, on either side, is no fault of anybody here.
        with suppress(trio.BrokenResourceError):
            head, rest = await _head(client)
            if not head:
                return
            first = edited(head, own=own, target=target.encode(), token=token.encode()) + rest
            async with await trio.open_tcp_stream(host, int(port)) as server:
                await server.send_all(first)
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(_pump, client, server, nursery.cancel_scope)
                    await _pump(server, client, nursery.cancel_scope)

    async with trio.open_nursery() as nursery:
        (listener,) = await nursery.start(partial(trio.serve_tcp, serve, 0, host="127.0.0.1"))
        yield f"http://127.0.0.1:{listener.socket.getsockname()[1]}/mcp"
        nursery.cancel_scope.cancel()


async def _head(client: trio.SocketStream) -> tuple[bytes, bytes]:
    """The head, and what came with it; empty where no whole one came."""
    got = b""
    while b"\r\n\r\n" not in got:
        chunk = await client.receive_some()
        got += chunk
        if not chunk or len(got) > MAX_HEAD_BYTES:
            return b"", b""
    head, empty, rest = got.partition(b"\r\n\r\n")
    return head + empty, rest


async def _pump(source: trio.SocketStream, sink: trio.SocketStream, both: trio.CancelScope) -> None:
    """Forward until one is gone; then the other one is, too: clients of HTTP do not half-close."""
    with suppress(trio.BrokenResourceError):
        async for chunk in source:
            await sink.send_all(chunk)
    both.cancel()
