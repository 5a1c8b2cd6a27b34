"""The channel to the supervisor, and the values that all parts of the agent share."""

from __future__ import annotations

import errno
import os
import stat

from sandbox.capture import Capture, Spills
from sandbox.framing import FrameError, MessageReader, encode_frame
from sandbox.limits import Limits
from sandbox.polling import NonblockingStream, Poller

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from contextlib import AbstractContextManager
    from typing import Any


UNSENT_BYTES = 8 * 1024 * 1024
"""Above this the agent takes no more requests from a supervisor that does not read answers."""

LAG_BYTES = 1024 * 1024
"""Unacknowledged bytes above which output is no longer streamed but merged."""

RECENT = 64
"""Executions that are known to have had a result, for whoever asks a new supervisor."""


class Channel:
    """Messages to and from the supervisor, kept until they are acknowledged once it asked so.
    `recent` are ids of the last executions that had a result, acknowledged or not."""

    def __init__(
        self,
        poller: Poller,
        read_fd: int,
        write_fd: int,
        on_message: Callable[[Mapping[str, Any]], None],
        on_end: Callable[[], None],
        on_progress: Callable[[], None],
    ) -> None:
        self._on_message = on_message
        self._on_end = on_end
        self._on_progress = on_progress
        self._reader = MessageReader()
        self._sequence: int | None = None
        self._kept: dict[int, tuple[bytes, str | None]] = {}
        self._kept_bytes = 0
        self.recent: list[str] = []
        self._link = NonblockingStream(
            poller, read_fd, write_fd, self._on_data, on_end, self._on_sent
        )

    @property
    def passes_descriptors(self) -> bool:
        """True if it is a socket, as always except where somebody tries an agent by hand."""
        return stat.S_ISSOCK(os.fstat(self._link.write_fd).st_mode)

    @property
    def lag_bytes(self) -> int:
        """Number of bytes that the supervisor has not acknowledged, or not taken if it does not
        acknowledge."""
        return self._link.unsent_bytes if self._sequence is None else self._kept_bytes

    @property
    def kept_results(self) -> list[str]:
        """Ids of the executions whose results are not acknowledged."""
        return [result for _, result in self._kept.values() if result is not None]

    def begin_sequence(self, marker: bytes) -> None:
        """Numbers frames from now on, and accepts `marker` from a new holder of the channel."""
        self._reader.marker = marker
        self._sequence = 0

    def send(
        self,
        message: dict[str, Any],
        descriptor: int | None = None,
        fallback: Callable[[], dict[str, Any]] | None = None,
    ) -> None:
        """Send a message and, with a sequence, keep it.

        Raise FrameError if it does not fit a frame.

        Args:
            descriptor: goes along, once: repeated frames have none.
            fallback: makes the message to send if the kernel refuses to pass the descriptor.
        """
        if self._sequence is None:
            other = None if fallback is None else lambda: encode_frame(fallback())
            self._link.send(encode_frame(message), descriptor, other)
        else:
            number = self._sequence + 1
            frame = encode_frame({**message, "seq": number})
            self._sequence = number
            result = None
            if message["type"] == "result":
                result = str(message["id"])
                self.recent.append(result)
                if len(self.recent) > RECENT:
                    del self.recent[0]
            self._kept[self._sequence] = (frame, result)
            self._kept_bytes += len(frame)
            other = None if fallback is None else lambda: self._replace(number, fallback())
            self._link.send(frame, descriptor, other)
        if self._link.unsent_bytes > UNSENT_BYTES:
            self._link.read_on(False)

    def _replace(self, number: int, message: dict[str, Any]) -> bytes:
        """Keep another message under a number, and return its frame."""
        frame = encode_frame({**message, "seq": number})
        if number in self._kept:
            old, result = self._kept[number]
            self._kept[number] = (frame, result)
            self._kept_bytes += len(frame) - len(old)
        return frame

    def together(self) -> AbstractContextManager[None]:
        """Send the messages of a block as a whole: each write wakes the supervisor."""
        return self._link.together()

    def send_encoded(self, frame: bytes) -> None:
        """Send a frame that was made before; nothing may have asked for a sequence yet."""
        self._link.send(frame)

    def acknowledge(self, number: int) -> None:
        """Forget the frames up to `number`."""
        for kept in list(self._kept):
            if kept > number:
                break
            self._kept_bytes -= len(self._kept.pop(kept)[0])
        self._on_progress()

    def resume(self, resumed: dict[str, Any]) -> None:
        """Answer a new holder: the marker, `resumed` without a number, and every kept frame."""
        self._link.drop_unsent()
        frames = [frame for frame, _ in self._kept.values()]
        self._link.send(b"".join([self._reader.marker, encode_frame(resumed), *frames]))

    def _on_sent(self) -> None:
        self._link.read_on(True)
        self._on_progress()

    def _on_data(self, data: bytes) -> None:
        self._reader.receive_data(data)
        while True:
            try:
                message = self._reader.next_message()
            except FrameError as error:
                self.send({"type": "error", "message": str(error)})
                if error.fatal:
                    self._on_end()
                continue
            if message is None:
                return
            self._on_message(message)


class SharedSession:
    """Values that every part of the agent may use. It knows none of the parts.

    Args:
        file: path of the agent's program, for another Python to run.
        workspace: working directory of interpreters and place for spilled output.

    Attributes:
        has_forks: the session has been forked; what starts in it is kept from its forks.
        is_fork: it is a fork itself.
        rehearses: nobody is to hear of what runs.
        layers: descriptors of overlays that undo takes back, as `return_overlay` has them.
    """

    pid: int
    channel: Channel

    def __init__(self, file: str, workspace: str, limits: Limits | None) -> None:
        self.file = file
        self.workspace = workspace
        self.limits = limits or Limits()
        self.has_forks = self.is_fork = False
        self.rehearses = False
        self.poller = Poller()
        self.layers: Sequence[Sequence[int]] = ()
        self._spills = Spills(workspace)

    def new_capture(self, stream: str) -> Capture:
        return Capture(stream, self._spills, self.limits)

    def send(
        self,
        message: dict[str, Any],
        descriptor: int | None = None,
        fallback: Callable[[], dict[str, Any]] | None = None,
    ) -> None:
        if not self.rehearses:
            self.channel.send(message, descriptor, fallback)

    def may_send(self) -> bool:
        """False while the supervisor lags behind with what it has been sent."""
        return self.channel.lag_bytes <= LAG_BYTES

    def fail(self, text: str, request_id: object = None) -> None:
        self.send(refusal(text, request_id))

    def send_descriptor(self, message: dict[str, Any], descriptor: int, failure: str) -> None:
        """Send an answer with a descriptor, or an error if the kernel refuses to pass it, such as
        "cannot listen"."""
        why = f"{failure}: {os.strerror(errno.ETOOMANYREFS)}"
        self.channel.send(message, descriptor, lambda: refusal(why, message["id"]))


def refusal(text: str, request_id: object = None) -> dict[str, Any]:
    """Make the answer to a request that cannot be done."""
    about = {"id": request_id} if isinstance(request_id, (str, int)) else {}
    return {"type": "error", "message": text, **about}
