"""One end of a connection of HTTP/2: h2's state, bytes to and from the peer, and floods."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from contextlib import suppress

import trio
from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.errors import ErrorCodes
from h2.events import Event
from h2.exceptions import ProtocolError
from h2.settings import SettingCodes, Settings
from hyperframe.frame import (
    ContinuationFrame,
    DataFrame,
    GoAwayFrame,
    HeadersFrame,
    RstStreamFrame,
    WindowUpdateFrame,
)

MAX_STREAMS = 100
MAX_HEAD_BYTES = 64 * 1024
STREAM_WINDOW = 256 * 1024
CONNECTION_WINDOW = 1024 * 1024
"""Bytes that a peer may send before they are passed on: of one stream, and of all. One stream that
nobody reads must not stop the others.
"""

MAX_WAITING = 64 * 1024
"""Bytes that wait for a peer to read before no further piece is added."""

FLOOD_S = 10.0
FLOOD_FRAMES = 1000
"""Frames that carry nothing for the other side, which a peer may send in that time: clients send
some at each request.
"""

RESET_COSTS = 5
"""A request that is taken back counts as so many: the server has worked for it."""

UPDATES_FOR_A_FRAME = 4
"""Window updates that a peer may send for each frame with something that it gets; two are usual."""

_HEAD = struct.Struct(">HBBBL")
_LONGEST_GOAWAY = 16384
_FRAME_HEAD_BYTES = 9
_PREFACE_BYTES = 24
_END_STREAM = 1

Headers = Sequence[tuple[bytes, bytes]]


class FloodError(Exception):
    """A peer sends too many frames that carry nothing."""


class FrameWatch:
    """Counts the frames of a peer, and takes the GOAWAY out: after one, h2 would take no more
    responses.

    Args:
        preface: True if the peer is a client.

    Attributes:
        last_stream: the last stream that the peer takes, once it has sent GOAWAY.
    """

    def __init__(self, *, preface: bool) -> None:
        self.last_stream: int | None = None
        self._skip = _PREFACE_BYTES if preface else 0
        self._head = b""
        self._taken: bytearray | None = None
        self._earned = UPDATES_FOR_A_FRAME
        self._idle = 0
        self._since_s = trio.current_time()

    def earn(self) -> None:
        """Let the peer send window updates: it gets a frame with something."""
        self._earned += UPDATES_FOR_A_FRAME

    def feed(self, data: bytes) -> bytes:
        """Take bytes; return those for h2.

        Raises:
            FloodError: there are too many frames.
        """
        kept: list[bytes] = []
        while data:
            if self._skip:
                part, data = data[: self._skip], data[self._skip :]
                self._skip -= len(part)
                if self._taken is None:
                    kept.append(part)
                else:
                    self._taken += part
            else:
                missing = _FRAME_HEAD_BYTES - len(self._head)
                self._head, data = self._head + data[:missing], data[missing:]
                if len(self._head) == _FRAME_HEAD_BYTES:
                    kept.append(self._begin_frame())
            if not self._skip and self._taken is not None:
                self._end_goaway(self._taken)
        return b"".join(kept)

    def count(self, cost: int, what: str) -> None:
        """Count something that carries nothing.

        Raises:
            FloodError: it is too much.
        """
        now = trio.current_time()
        if now > self._since_s + FLOOD_S:
            self._idle, self._since_s = 0, now
        self._idle += cost
        if self._idle > FLOOD_FRAMES:
            raise FloodError(f"too many frames that carry nothing, the last one {what}")

    def _begin_frame(self) -> bytes:
        high, low, kind, flags, _ = _HEAD.unpack(self._head)
        head, self._head = self._head, b""
        self._skip = high << 8 | low
        if kind == GoAwayFrame.type:
            self.count(1, "GOAWAY")
            if self._skip > _LONGEST_GOAWAY:
                raise FloodError("a GOAWAY that is too long")
            self._taken = bytearray()
            return b""
        if kind == RstStreamFrame.type:
            self.count(RESET_COSTS, "RST_STREAM")
        elif kind == WindowUpdateFrame.type and self._earned:
            self._earned -= 1
        elif kind == DataFrame.type:
            if not self._skip and not flags & _END_STREAM:
                self.count(1, "DATA without a byte")
        elif kind == HeadersFrame.type:
            self.earn()
        elif kind != ContinuationFrame.type:
            self.count(1, f"of type {kind}")
        return head

    def _end_goaway(self, taken: bytearray) -> None:
        last = int.from_bytes(taken[:4], "big") & 0x7FFF_FFFF if len(taken) >= 8 else 0
        self.last_stream = last if self.last_stream is None else min(last, self.last_stream)
        self._taken = None


class Http2End:
    """One end.

    Args:
        stream: to the peer, after TLS.
        to_client: True if the peer is a client.
    """

    def __init__(self, stream: trio.abc.Stream, *, to_client: bool) -> None:
        self._stream = stream
        self.watch = FrameWatch(preface=to_client)
        self.connection = H2Connection(
            H2Configuration(client_side=not to_client, header_encoding=None)
        )
        values = {
            SettingCodes.MAX_CONCURRENT_STREAMS: MAX_STREAMS,
            SettingCodes.INITIAL_WINDOW_SIZE: STREAM_WINDOW,
            SettingCodes.MAX_HEADER_LIST_SIZE: MAX_HEAD_BYTES,
        }
        if not to_client:
            values[SettingCodes.ENABLE_PUSH] = 0
        self.connection.local_settings = Settings(client=not to_client, initial_values=values)
        self._out = bytearray()
        self._writing = False
        self._wake = trio.Event()
        self._changed = trio.Event()
        self.connection.initiate_connection()
        self.connection.increment_flow_control_window(CONNECTION_WINDOW - 65535)
        self.take()

    # Bytes.

    async def write(self) -> None:
        """Write until cancelled."""
        while True:
            await self._wake.wait()
            self._wake = trio.Event()
            while self._out:
                data, self._out = self._out, bytearray()
                self._writing = True
                await self._stream.send_all(data)
                self._writing = False
                self.note()

    async def receive(self, most: int) -> bytes:
        """Read some bytes; none at the end."""
        return bytes(await self._stream.receive_some(most))

    def events(self, data: bytes) -> list[Event]:
        """Take bytes of the peer.

        Raises:
            ProtocolError: they are not valid; the peer is told.
            FloodError: there are too many frames.
        """
        try:
            return self.connection.receive_data(self.watch.feed(data))
        finally:
            self.take()
            self.note()

    def take(self) -> None:
        """Take what h2 wants to send."""
        self._out += self.connection.data_to_send()
        if self._out:
            self._wake.set()

    def note(self) -> None:
        """Wake what waits for room, a window or an end."""
        changed, self._changed = self._changed, trio.Event()
        changed.set()

    async def change(self) -> None:
        """Wait for the next change."""
        await self._changed.wait()

    async def drain(self) -> None:
        """Wait until the peer has got everything."""
        while self._out or self._writing:
            await self.change()

    @property
    def has_room(self) -> bool:
        return len(self._out) < MAX_WAITING

    @property
    def may_open(self) -> bool:
        """True if the server takes one more request now."""
        most = self.connection.remote_settings.max_concurrent_streams
        return self.has_room and self.connection.open_outbound_streams < most

    # Frames.

    async def send_headers(
        self, stream_id: int, headers: Iterable[tuple[bytes, bytes]], *, end: bool = False
    ) -> None:
        """Send headers or trailers.

        Raises:
            ProtocolError: the stream has ended.
        """
        while not self.has_room:
            await self.change()
        self.connection.send_headers(stream_id, list(headers), end_stream=end)
        self.watch.earn()
        self.take()

    async def send_data(self, stream_id: int, data: bytes, *, end: bool = False) -> None:
        """Send data as fast as the peer takes it.

        Raises:
            ProtocolError: the stream has ended.
        """
        while data or end:
            window = self.connection.local_flow_control_window(stream_id)
            size = min(len(data), window, self.connection.max_outbound_frame_size)
            if not self.has_room or (data and size <= 0):
                await self.change()
                continue
            last = end and size == len(data)
            self.connection.send_data(stream_id, data[:size], end_stream=last)
            self.watch.earn()
            self.take()
            if last:
                return
            data = data[size:]

    def acknowledge(self, stream_id: int, size: int) -> None:
        """Let the peer send as many bytes again: they were passed on."""
        with suppress(ProtocolError):
            if size:
                self.connection.acknowledge_received_data(size, stream_id)
        self.take()

    def reset(self, stream_id: int, code: int) -> None:
        """End a stream."""
        with suppress(ProtocolError):
            self.connection.reset_stream(stream_id, code)
        self.take()

    def leave(self, last_stream: int) -> None:
        """Take no further stream; those up to that one go on (h2 itself would end them)."""
        frame = GoAwayFrame(0)
        frame.last_stream_id = last_stream
        self._out += frame.serialize()
        self._wake.set()

    def end(self, code: ErrorCodes) -> None:
        """Tell the peer that everything is over."""
        with suppress(ProtocolError):
            self.connection.close_connection(code)
        self.take()
