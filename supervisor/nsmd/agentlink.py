"""Frames to and from one agent over its channel: handshake, acknowledgements, bounded writing."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from typing import Any

import trio

from nsmd import agentframes
from nsmd.agentframes import AgentFrame, AgentProtocolError, OutputFrame, ReadyFrame
from sandbox_agent import FrameError, FrameReader, encode_frame

PROTOCOL = 1
CHUNK_BYTES = 64 * 1024

MAX_OUTGOING = 256
"""Frames that wait for the agent. It reads at once unless it was stopped or taken over."""

ACK_FRAMES = 32
ACK_CHARS = 128 * 1024
"""Streamed output is acknowledged at the latest after that much; the agent keeps it until then and
holds streaming back at 1 MiB."""


class AgentLinkError(Exception):
    """The channel to the agent is gone, or the agent does not read."""


class AgentLink:
    """The supervisor's end of an agent's channel.

    One task receives, one writes (`run_writer`), anyone posts. The stream belongs to the caller.

    Attributes:
        capabilities: what `ready` offered; empty before the handshake.
    """

    def __init__(self, stream: trio.abc.Stream) -> None:
        self.capabilities: frozenset[str] = frozenset()
        self.token = secrets.token_bytes(16)
        self._stream = stream
        self._reader = FrameReader()
        self._unacked_frames = 0
        self._unacked_chars = 0
        self._to_write, self._written = trio.open_memory_channel[bytes](MAX_OUTGOING)

    async def handshake(self, limits: Mapping[str, int]) -> ReadyFrame:
        """Wait for `ready` and introduce ourselves.

        Args:
            limits: for interpreters, as in the protocol's `limits`.

        Raises:
            AgentProtocolError: the first frame is something else.
            AgentLinkError: the channel ended first.
        """
        ready = await self.receive()
        if not isinstance(ready, ReadyFrame):
            raise AgentProtocolError(f"the first frame is not `ready` but {type(ready).__name__}")
        self.capabilities = ready.capabilities
        if "sequence" in ready.capabilities:
            hello: dict[str, Any] = {
                "type": "hello",
                "protocol": PROTOCOL,
                "token": self.token.hex(),
            }
            if "limits" in ready.capabilities:
                hello["limits"] = dict(limits)
            self.post(hello)
        return ready

    def post(self, frame: Mapping[str, Any]) -> None:
        """Queue a frame for the agent.

        Raises:
            AgentLinkError: too many wait, because the agent does not read.
        """
        try:
            self._to_write.send_nowait(encode_frame(frame))
        except trio.WouldBlock:
            raise AgentLinkError("its agent does not read what it is sent") from None
        except trio.BrokenResourceError:
            pass  # the writer saw the end of the channel; the reader reports it

    async def receive(self) -> AgentFrame:
        """The next frame.

        Raises:
            AgentProtocolError: it is not a valid one.
            AgentLinkError: the channel ended.
        """
        while (frame := self._next_frame()) is None:
            try:
                data = await self._stream.receive_some(CHUNK_BYTES)
            except (trio.BrokenResourceError, trio.ClosedResourceError):
                data = b""
            if not data:
                raise AgentLinkError("ended its channel")
            self._reader.receive_data(bytes(data))
        parsed = agentframes.parse(frame)
        self._acknowledge(frame, parsed)
        return parsed

    async def run_writer(self) -> None:
        """Write what was posted until the channel ends.

        Raises:
            AgentLinkError: the channel ended.
        """
        async with self._written:
            try:
                async for data in self._written:
                    await self._stream.send_all(data)
            except (trio.BrokenResourceError, trio.ClosedResourceError) as error:
                raise AgentLinkError("ended its channel") from error

    def _next_frame(self) -> Mapping[str, Any] | None:
        try:
            return self._reader.next_message()
        except FrameError as error:
            raise AgentProtocolError(str(error)) from error

    def _acknowledge(self, frame: Mapping[str, Any], parsed: AgentFrame) -> None:
        """Tell the agent what it need not keep; output in batches, everything else at once."""
        number = agentframes.sequence(frame)
        if number is None:
            return
        if isinstance(parsed, OutputFrame):
            self._unacked_frames += 1
            self._unacked_chars += len(parsed.text)
            if self._unacked_frames < ACK_FRAMES and self._unacked_chars < ACK_CHARS:
                return
        self._unacked_frames = self._unacked_chars = 0
        self.post({"type": "ack", "seq": number})
