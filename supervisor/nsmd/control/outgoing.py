"""Bytes on their way to one client: frames, written at once if its socket takes them; the output of
its executions, bounded even if it is slow; and streams whose bytes are counted.

What a slow client does not take is queued here, and senders can wait for room: the connection stops
reading requests, and an execution's output is left out. Nobody else is slowed down.
"""

from __future__ import annotations

import os
import socket
from collections import deque
from collections.abc import Mapping

import trio

from nsmd.model.values import Output, StreamName
from nsmd.telemetry import Traffic

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


MAX_PENDING_CHARS = 1024 * 1024
"""Largest size of text that waits for one client. Further output is left out of the stream (not of
the result), and the next piece of the same standard stream says how much.
"""

MAX_TOGETHER_CHARS = 16 * 1024 * 1024
"""The same for all executions of one client together: it may have started a thousand and read
nothing.
"""

_PIECE_CHARS = 200
"""Memory of a waiting piece beside its text: a flood of tiny pieces must not add up either."""


class Room:
    """Bound of the output that waits for one client, for all its executions together.

    Attributes:
        chars: size of the waiting output.
        answer_bytes: size of the answers of ended executions whose output has not all been sent.
    """

    __slots__ = ("answer_bytes", "chars")

    def __init__(self) -> None:
        self.chars = 0
        self.answer_bytes = 0


class OutputStream:
    """Sink for an execution, and source for the task that sends its output."""

    def __init__(self, room: Room) -> None:
        self._room = room
        self._pending: deque[tuple[Output, int]] = deque()
        self._chars = 0
        self._skipped: dict[StreamName, int] = {}
        self._wake = trio.Event()
        self._closed = False

    def put(self, output: Output) -> None:
        """Take a piece of output; never blocks."""
        if not output.text:
            return
        size = len(output.text) + _PIECE_CHARS
        full = self._chars + size > MAX_PENDING_CHARS
        if full or self._room.chars + size > MAX_TOGETHER_CHARS:
            skipped = self._skipped.get(output.stream, 0)
            self._skipped[output.stream] = skipped + len(output.text)
            return
        self._count(size)
        self._pending.append((output, self._skipped.pop(output.stream, 0)))
        self._wake.set()

    def close(self) -> None:
        """Note the end of the output."""
        self._closed = True
        self._wake.set()

    async def get(self) -> tuple[Output, int] | None:
        """Return the next piece, and how many characters of its stream were left out before it;
        None at the end. A gap at the end is not reported: the result's text is longer than what was
        sent.
        """
        while not self._pending:
            if self._closed:
                return None
            self._wake = trio.Event()
            await self._wake.wait()
        output, skipped = self._pending.popleft()
        self._count(-len(output.text) - _PIECE_CHARS)
        return output, skipped

    def left_out(self) -> Mapping[StreamName, int]:
        """Number of characters left out after the last piece of each stream."""
        return self._skipped

    def discard(self) -> None:
        """Drop what is left: nobody takes it."""
        self._pending.clear()
        self._count(-self._chars)

    def _count(self, chars: int) -> None:
        self._chars += chars
        self._room.chars += chars


class CountedStream(trio.abc.HalfCloseableStream):
    """Another stream, with counts of its bytes."""

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
