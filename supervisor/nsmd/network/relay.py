"""Bytes in both directions between code and the world."""

from __future__ import annotations

from collections.abc import Callable

import trio

PIECE_BYTES = 64 * 1024


async def relay(
    client: trio.SocketStream,
    server: trio.SocketStream,
    sent: Callable[[int], None],
    received: Callable[[int], None],
) -> None:
    """Pass on bytes until both sides have ended, or one is gone.

    Args:
        sent: gets the number of bytes sent to the server.
        received: gets the number of bytes received from it.
    """
    async with trio.open_nursery() as nursery:

        async def copy(
            source: trio.SocketStream, target: trio.SocketStream, count: Callable[[int], None]
        ) -> None:
            try:
                while data := await source.receive_some(PIECE_BYTES):
                    await target.send_all(data)
                    count(len(data))
                await target.send_eof()
            except (trio.BrokenResourceError, trio.ClosedResourceError):
                nursery.cancel_scope.cancel()

        nursery.start_soon(copy, client, server, sent)
        nursery.start_soon(copy, server, client, received)
