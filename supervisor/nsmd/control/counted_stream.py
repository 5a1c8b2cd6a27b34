"""A connection whose bytes are counted."""

from __future__ import annotations

import trio

from nsmd.telemetry import Traffic


class CountedStream(trio.abc.HalfCloseableStream):
    """Another stream, with counts of its bytes.

    Args:
        received: number of bytes that were already read.
    """

    def __init__(
        self, stream: trio.abc.HalfCloseableStream, traffic: Traffic, received: int = 0
    ) -> None:
        self._stream = stream
        self._traffic = traffic
        traffic.received += received

    async def receive_some(self, max_bytes: int | None = None) -> bytes | bytearray:
        data = await self._stream.receive_some(max_bytes)
        self._traffic.received += len(data)
        return data

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        await self._stream.send_all(data)
        self._traffic.sent += len(data)

    async def wait_send_all_might_not_block(self) -> None:
        await self._stream.wait_send_all_might_not_block()

    async def send_eof(self) -> None:
        await self._stream.send_eof()

    async def aclose(self) -> None:
        await self._stream.aclose()
