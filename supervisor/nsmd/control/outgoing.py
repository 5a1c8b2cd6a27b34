"""Messages to one client: written at once if its socket takes them, as nearly always.

What a slow client does not take waits here, and whoever has more to say can wait for room: the
connection stops reading requests, and an execution's output is left out. Nobody else is slowed.
"""

from __future__ import annotations

import os

import trio

HIGH_WATER_BYTES = 1024 * 1024
"""What may wait before nothing more is taken from the client. Answers to what it has asked already
come on top."""

MAX_WAITING_BYTES = 64 * 1024 * 1024
"""What may wait with those. A client that reads at all is far below it; one that does not has asked
for up to a thousand answers of megabytes each."""

_CHUNK_BYTES = 256 * 1024


class Outgoing:
    """Messages to one client.

    Args:
        descriptor: of a non-blocking socket.
        nursery: for the task that writes what had to wait; cancelled when the client is gone.
    """

    def __init__(self, descriptor: int, nursery: trio.Nursery) -> None:
        self._descriptor = descriptor
        self._nursery = nursery
        self._waiting = bytearray()
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
        """True once as much waits as may wait."""
        return len(self._waiting) > MAX_WAITING_BYTES

    def put(self, data: bytes) -> None:
        """Send, now or as the client reads. What is sent after `close` goes nowhere."""
        if self._closed:
            return
        if self._waiting:
            self._waiting += data
            return
        sent = self._write_now(data)
        if sent < len(data):
            self._waiting += memoryview(data)[sent:]
            self._nursery.start_soon(self._write)

    async def room(self) -> None:
        """Wait until little enough waits."""
        while len(self._waiting) > HIGH_WATER_BYTES:
            await self._progress()

    async def flushed(self) -> None:
        """Wait until the client has everything."""
        while self._waiting:
            await self._progress()

    def close(self) -> None:
        """The socket may be another's from now on."""
        self._closed = True

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
            return os.write(self._descriptor, data)
        except BlockingIOError:
            return 0
        except OSError:
            self.close()
            self._nursery.cancel_scope.cancel()  # nobody reads any more
            return len(data)
