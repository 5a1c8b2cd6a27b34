"""Messages to one client: written at once if its socket takes them, which is nearly always.

What a slow client does not take is queued here, and senders can wait for room: the connection stops
reading requests, and an execution's output is left out. Nobody else is slowed down.
"""

from __future__ import annotations

import os
import socket
from collections import deque

import trio

HIGH_WATER_BYTES = 1024 * 1024
"""Size of the queue from which on no more requests are read. Answers to earlier requests come on
top.
"""

MAX_WAITING_BYTES = 64 * 1024 * 1024
"""Largest size of the queue, those answers included. A client that reads at all stays far below;
one that does not may have asked for a thousand answers of megabytes each.
"""

_CHUNK_BYTES = 256 * 1024


class Outgoing:
    """Messages to one client.

    Args:
        descriptor: descriptor of a non-blocking socket.
        nursery: for the task that writes the queue; cancelled when the client is gone.
    """

    def __init__(self, descriptor: int, nursery: trio.Nursery) -> None:
        self._descriptor = descriptor
        self._nursery = nursery
        self._waiting = bytearray()
        self._passed: deque[tuple[int, int]] = deque()  # bytes that go before it, and a descriptor
        self._written: trio.Event | None = None
        self._closed = False

    def __repr__(self) -> str:
        return f"<Outgoing {len(self._waiting)} bytes waiting>"

    @property
    def waiting(self) -> bool:
        """True while the client has an unfinished frame."""
        return bool(self._waiting)

    @property
    def is_full(self) -> bool:
        """True once the queue is full."""
        return len(self._waiting) > MAX_WAITING_BYTES

    def put(self, data: bytes, descriptor: int | None = None) -> None:
        """Send, now or as the client reads. After `close` this does nothing.

        Args:
            descriptor: goes along with the first byte; closed in any case.
        """
        if self._closed:
            if descriptor is not None:
                os.close(descriptor)
            return
        if descriptor is not None:
            self._passed.append((len(self._waiting), descriptor))
        if self._waiting:
            self._waiting += data
            return
        sent = self._write_now(data)
        if sent < len(data):
            self._waiting += memoryview(data)[sent:]
            self._nursery.start_soon(self._write)

    async def room(self) -> None:
        """Wait until the queue is short enough."""
        while len(self._waiting) > HIGH_WATER_BYTES:
            await self._progress()

    async def flushed(self) -> None:
        """Wait until the client has everything."""
        while self._waiting:
            await self._progress()

    def close(self) -> None:
        """Stop writing: the descriptor may belong to another socket from now on."""
        self._closed = True
        while self._passed:
            os.close(self._passed.popleft()[1])

    async def _progress(self) -> None:
        if self._written is None:
            self._written = trio.Event()
        await self._written.wait()

    async def _write(self) -> None:
        while self._waiting:
            await trio.lowlevel.wait_writable(self._descriptor)
            del self._waiting[: self._write_now(self._waiting[:_CHUNK_BYTES])]
            if self._written is not None:
                self._written.set()
                self._written = None

    def _write_now(self, data: bytes | bytearray) -> int:
        try:
            if self._passed:
                return self._write_passing(data)
            return os.write(self._descriptor, data)
        except BlockingIOError:
            return 0
        except OSError:
            self.close()
            self._nursery.cancel_scope.cancel()  # nobody reads any more
            return len(data)

    def _write_passing(self, data: bytes | bytearray) -> int:
        """Write what goes before the next descriptor, or that with the byte that it belongs to."""
        before, descriptor = self._passed[0]
        if before:
            written = os.write(self._descriptor, data[:before])
        else:
            channel = socket.socket(fileno=self._descriptor)
            end = self._passed[1][0] if len(self._passed) > 1 else len(data)
            try:
                written = socket.send_fds(channel, [data[:end]], [descriptor])
            finally:
                channel.detach()
            self._passed.popleft()
            os.close(descriptor)
        self._passed = deque((place - written, other) for place, other in self._passed)
        return written
