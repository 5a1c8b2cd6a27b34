"""Frames to and from one agent over its channel: handshake, acknowledgements, bounded writing."""

from __future__ import annotations

import os
import secrets
import socket
from collections.abc import Mapping
from typing import Any

import trio

from nsmd.agent_link import frames
from nsmd.agent_link.file_frames import (
    FileContentFrame,
    FileDataFrame,
    FileEntriesFrame,
    FileFrame,
)
from nsmd.agent_link.frames import (
    AgentFrame,
    AgentProtocolError,
    JobOutputFrame,
    ListeningFrame,
    NamesFrame,
    OtherFrame,
    OutputFrame,
    PortsFrame,
    ReadyFrame,
    ResultFrame,
    ResumedFrame,
    RunnerFrame,
)
from nsmd.fdstore.holder import ROOM_FOR_ONE, descriptors_in
from sandbox.framing import (
    CAPABILITIES,
    RESUMED,
    FrameError,
    MessageReader,
    encode_frame,
    resume_marker,
)

PROTOCOL = 1
CHUNK_BYTES = 64 * 1024

NOWAIT = socket.MSG_DONTWAIT
"""Flag of each call. A jail may have the channel's file description, too, as of a channel that came
out of it; and whether calls wait is a property of that, which any holder may change.
"""

MAX_BACKLOG_BYTES = 32 * 1024 * 1024
"""Largest backlog for an agent. An agent reads at once unless it was stopped or taken over; the
largest piece of code takes 16 MiB.
"""

_OFFERED = frozenset(CAPABILITIES)

ACK_FRAMES = 32
ACK_CHARS = 128 * 1024
"""Characters after which, at the latest, frames are acknowledged. The agent keeps them until then,
and holds streaming back at 1 MiB.
"""


class Descriptor:
    """A descriptor that is closed when nobody has this object any more."""

    __slots__ = ("_number",)

    def __init__(self, number: int) -> None:
        self._number = number

    def detach(self) -> int:
        """The descriptor, from now on the caller's."""
        number, self._number = self._number, -1
        return number

    def __del__(self) -> None:
        if self._number >= 0:
            os.close(self._number)


MAX_FIRST, MAX_FIRST_BYTES = 64, 4096
_FIRST: dict[bytes, ReadyFrame] = {}
"""Agents' first messages that were parsed before."""


class AgentLinkError(Exception):
    """The channel to the agent is closed, or the agent does not read."""


class AgentLink:
    """The supervisor's end of an agent's channel.

    One task receives; anyone may post. If a frame cannot be written at once, a task of its own
    writes it. The link works on the socket itself, because each call passes here twice, and trio's
    streams would cost a turn of the scheduler each time.

    Args:
        channel: non-blocking; the caller keeps it open until `close`.
        nursery: for the task that writes.

    Attributes:
        capabilities: what `ready` offered; empty before the handshake.
        token: for taking over the session after a restart.
    """

    __slots__ = (
        "_acked",
        "_arrived",
        "_awaiting",
        "_backlog",
        "_channel",
        "_claimable",
        "_last",
        "_nursery",
        "_reader",
        "_unacked_chars",
        "_unacked_frames",
        "capabilities",
        "token",
    )

    def __init__(self, channel: socket.socket, nursery: trio.Nursery) -> None:
        self.capabilities: frozenset[str] = frozenset()
        self.token = secrets.token_bytes(16)
        self._channel = channel
        self._nursery = nursery
        self._reader = MessageReader()
        self._acked = self._last = 0
        self._unacked_frames = 0
        self._unacked_chars = 0
        self._backlog: bytearray | None = None
        self._awaiting: dict[str, bool] = {}  # ids, and whether somebody still wants it
        self._arrived: list[Descriptor] = []  # few: a deque takes 600 bytes of each session
        self._claimable: dict[str, Descriptor] = {}

    async def handshake(
        self,
        limits: Mapping[str, int],
        setup: Mapping[str, Any] | None = None,
        *,
        ready: AgentFrame | None = None,
    ) -> ReadyFrame:
        """Wait for `ready` and send `hello`.

        Args:
            limits: for interpreters, as in the protocol's `limits`.
            setup: as in the protocol's `setup`; None for nothing to set up.
            ready: the agent's first frame, if it was received already.

        Raises:
            AgentProtocolError: the first frame is something else.
            AgentLinkError: the channel ended first, or the agent is too old for a set-up.
        """
        if ready is None:
            ready = await self.receive()
        if not isinstance(ready, ReadyFrame):
            raise AgentProtocolError(f"the first frame is not `ready` but {type(ready).__name__}")
        # Thousands of our agents offer the same.
        same = ready.capabilities == _OFFERED
        self.capabilities = _OFFERED if same else ready.capabilities
        if setup is not None and not {"sequence", "setup"} <= ready.capabilities:
            raise AgentLinkError("is too old to set an environment up")
        if "sequence" in ready.capabilities:
            hello: dict[str, Any] = {
                "type": "hello",
                "protocol": PROTOCOL,
                "token": self.token.hex(),
            }
            if "limits" in ready.capabilities:
                hello["limits"] = dict(limits)
            if setup is not None:
                hello["setup"] = setup
            self.post(hello)
        return ready

    async def resume(self, token: bytes, capabilities: frozenset[str]) -> ResumedFrame:
        """Continue on a channel whose earlier owner, whose `hello` had the token, may have stopped
        in the middle of a frame, in either direction.

        Returns the first frame. Frames that nobody has acknowledged follow.

        Raises:
            AgentProtocolError: the agent says something else.
            AgentLinkError: the channel ended.
        """
        self.token = token
        self.capabilities = _OFFERED if capabilities == _OFFERED else capabilities
        marker = self._reader.marker = resume_marker(token.hex())
        await self._pass_over_earlier_answers(marker)
        # Nobody but us has written since then. So the next marker is the answer to this one.
        self._reader.skip_to_marker()
        self._write_or_keep(marker)
        if await self._receive_frame() is not RESUMED:
            raise AgentProtocolError("no resume marker was sent back")
        resumed = frames.parse(await self._receive_frame())
        if not isinstance(resumed, ResumedFrame):
            raise AgentProtocolError(
                f"the first frame is not `resumed` but {type(resumed).__name__}"
            )
        self._reader.marker = b""
        return resumed

    async def _pass_over_earlier_answers(self, marker: bytes) -> None:
        """Discard all answers to owners before this one.

        Any number of them may have sent a marker and been killed while the agent was stopped. It
        answers each, and an answer does not say whose it is. So we ask something that only we can
        have asked: its answer comes after all others. We interrupt an execution that does not
        exist; this changes nothing, and every agent answers with that id.
        """
        question = f"resume-{secrets.token_hex(8)}"
        self._reader.skip_to_marker()
        self._write_or_keep(marker + encode_frame({"type": "interrupt", "id": question}))
        while (await self._receive_frame()).get("id") != question:
            pass

    def post(self, frame: Mapping[str, Any]) -> None:
        """Send a frame to the agent; what its socket does not take at once is queued.

        Raises:
            AgentLinkError: too much is queued, because the agent does not read.
        """
        if frame["type"] == "execute" and self._last > self._acked:
            # Saves a frame of its own.
            frame = {**frame, "ack": self._last}
            self._acked = self._last
            self._unacked_frames = self._unacked_chars = 0
        elif frame["type"] in ("listen", "names", "ports", "runner") or frame.get("descriptor"):
            self._awaiting[str(frame["id"])] = True
        self._write_or_keep(encode_frame(frame))

    def _write_or_keep(self, data: bytes) -> None:
        if self._backlog:
            if len(self._backlog) > MAX_BACKLOG_BYTES:
                raise AgentLinkError("does not read what it is sent")
            self._backlog += data
            return
        try:
            sent = self._channel.send(data, NOWAIT)
        except BlockingIOError:
            sent = 0
        except OSError:
            return  # `receive` reports the end of the channel
        if sent < len(data):
            self._backlog = bytearray(data[sent:])
            self._nursery.start_soon(self._write, self._backlog)

    async def receive(self) -> AgentFrame:
        """Receive the next frame, or raise `AgentProtocolError` if it is not valid, and
        `AgentLinkError` if the channel ended.
        """
        return self._parse(await self._receive_frame())

    def receive_first(self) -> AgentFrame | None:
        """Return the first frame if it has arrived, else None; raises as `receive` does."""
        data = self._receive_data()
        known: AgentFrame | None = _FIRST.get(data)
        if known is None:
            self._reader.receive_data(data)
            known = self.next_frame()
            # Forks of one template say the same.
            whole = int.from_bytes(data[:4], "big") == len(data) - 4 < MAX_FIRST_BYTES
            if whole and isinstance(known, ReadyFrame) and not self._last:
                if len(_FIRST) >= MAX_FIRST:
                    _FIRST.clear()
                _FIRST[data] = known
        return known

    def next_frame(self) -> AgentFrame | None:
        """Return the next frame of those that were read, else None; raises as `receive` does."""
        frame = self._next_frame()
        return None if frame is None else self._parse(frame)

    def _parse(self, frame: Mapping[str, Any]) -> AgentFrame:
        parsed = frames.parse(frame)
        if self._awaiting:
            self._match_descriptor(parsed)
        self._acknowledge(frame, parsed)
        return parsed

    async def _receive_frame(self) -> Mapping[str, Any]:
        while (frame := self._next_frame()) is None:
            # Yields even if data is there, so that a flood does not starve other sessions.
            await trio.lowlevel.wait_readable(self._channel)
            self.read()
        return frame

    def read(self) -> None:
        """Read what the socket has now, for `next_frame`; raises as `receive` does."""
        if data := self._receive_data():
            self._reader.receive_data(data)

    def _receive_data(self) -> bytes:
        """Read what the socket has now; empty for nothing. Raises as `read` does."""
        try:
            # recv(2) drops descriptors.
            awaits = bool(self._awaiting)
            data = self._receive_descriptor() if awaits else self._channel.recv(CHUNK_BYTES, NOWAIT)
        except BlockingIOError:
            return b""
        except OSError:
            data = b""
        if not data:
            raise AgentLinkError("ended its channel")
        return data

    @property
    def has_ended(self) -> bool:
        """True if the agent is gone, although nobody has read that yet."""
        try:
            return not self._channel.recv(1, socket.MSG_PEEK | NOWAIT)
        except BlockingIOError:
            return False
        except OSError:
            return True

    def claim_descriptor(self, id_: str) -> int | None:
        """Descriptor that came with the answer to a request, from now on the caller's; None if none
        came. It may be anything that a process can have open.
        """
        descriptor = self._claimable.pop(id_, None)
        return None if descriptor is None else descriptor.detach()

    def forget_descriptor(self, id_: str) -> None:
        """Close the descriptor that came with an answer, or comes, since nobody claims it."""
        self._claimable.pop(id_, None)
        if id_ in self._awaiting:
            self._awaiting[id_] = False

    def _match_descriptor(self, frame: AgentFrame) -> None:
        """Find the descriptor of an answer. They come in the order of the answers."""
        id_ = getattr(frame, "id", None)
        if id_ not in self._awaiting or isinstance(frame, OutputFrame | ResultFrame):
            return
        wanted = self._awaiting.pop(id_)
        has_one = isinstance(frame, ListeningFrame | NamesFrame | PortsFrame | RunnerFrame) or (
            isinstance(frame, FileFrame) and frame.descriptor
        )
        if has_one and self._arrived:
            descriptor = self._arrived.pop(0)
            if wanted:
                self._claimable[id_] = descriptor
        elif has_one and isinstance(frame, FileFrame):
            raise AgentProtocolError("a descriptor did not come with its frame")

    def _receive_descriptor(self) -> bytes:
        """Read, and keep the descriptor that comes with the data."""
        # One may come; room for more would let the agent fill our table.
        data, parts, _, _ = self._channel.recvmsg(
            CHUNK_BYTES, ROOM_FOR_ONE, socket.MSG_CMSG_CLOEXEC | NOWAIT
        )
        self._arrived.extend(map(Descriptor, descriptors_in(parts)))
        if len(self._arrived) > len(self._awaiting):
            raise AgentProtocolError("more descriptors than were asked for")
        return data

    def close(self) -> None:
        """Stop writing; the channel can be closed then."""
        self._arrived.clear()
        self._claimable.clear()
        if self._backlog is not None:
            self._backlog = None
            trio.lowlevel.notify_closing(self._channel)

    async def _write(self, backlog: bytearray) -> None:
        """Write the backlog."""
        while backlog and self._backlog is backlog:
            try:
                await trio.lowlevel.wait_writable(self._channel)
                del backlog[: self._channel.send(backlog, NOWAIT)]
            except BlockingIOError:
                continue
            except (trio.ClosedResourceError, OSError):
                return  # `receive` reports the end of the channel
        self._backlog = None

    def _next_frame(self) -> Mapping[str, Any] | None:
        try:
            return self._reader.next_message()
        except FrameError as error:
            raise AgentProtocolError(str(error)) from error

    def _acknowledge(self, frame: Mapping[str, Any], parsed: AgentFrame) -> None:
        """Tell the agent what it need not keep, in batches or with the next execution.

        A result alone is never acknowledged: if we are killed before its reader has it, the agent
        is asked again.
        """
        number = frames.sequence(frame)
        if number is None:
            return
        self._last = number
        if isinstance(parsed, OtherFrame):
            return  # each take-over leaves one, and these must not add up to an acknowledgement
        self._unacked_frames += 1
        self._unacked_chars += _size(parsed)
        if isinstance(parsed, ResultFrame):
            return
        if self._unacked_frames >= ACK_FRAMES or self._unacked_chars >= ACK_CHARS:
            self._acked = number
            self._unacked_frames = self._unacked_chars = 0
            self.post({"type": "ack", "seq": number})


def _size(frame: AgentFrame) -> int:
    """Approximate size of a frame in the agent's memory."""
    match frame:
        case OutputFrame(text=text):
            return len(text)
        case FileDataFrame(data=data) | FileContentFrame(data=data) | JobOutputFrame(data=data):
            return len(data) * 4 // 3
        case FileEntriesFrame(entries=entries):
            return 64 * len(entries)
        case ResultFrame(outcome=outcome):
            return len(outcome.stdout) + len(outcome.stderr) + ACK_CHARS * bool(outcome.displays)
        case _:
            return 0
