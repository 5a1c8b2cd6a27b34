"""Bytes passed on between two connections."""

from __future__ import annotations

from collections.abc import Callable

import trio

PIECE_BYTES = 64 * 1024


async def relay(
    client: trio.SocketStream,
    server: trio.SocketStream,
    sent: Callable[[int], None],
    received: Callable[[int], None],
    client_ended: Callable[[], None] = lambda: None,
) -> None:
    """Pass on bytes until both sides have ended, or one is gone.

    Args:
        sent: gets the number of bytes sent to the server.
        received: gets the number of bytes received from it.
        client_ended: called when the client has closed its end.
    """
    async with trio.open_nursery() as nursery:

        async def copy(
            source: trio.SocketStream, target: trio.SocketStream, count: Callable[[int], None]
        ) -> None:
            try:
                while data := await source.receive_some(PIECE_BYTES):
                    await target.send_all(data)
                    count(len(data))
                if source is client:
                    client_ended()
                await target.send_eof()
            except (trio.BrokenResourceError, trio.ClosedResourceError):
                nursery.cancel_scope.cancel()

        nursery.start_soon(copy, client, server, sent)
        nursery.start_soon(copy, server, client, received)
