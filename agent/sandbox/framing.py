"""Frames: a length and a JSON object; the agent speaks them with supervisor and interpreters.

Also the version of the protocol with the supervisor, and what of it this agent can.
"""

from __future__ import annotations

import json

from sandbox.requests import as_object

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any, NoReturn


AGENT_VERSION = "0.2.0"

PROTOCOL = 1

CAPABILITIES = (
    "sequence",
    "execute.timeout",
    "execute.result",
    "execute.one_shot",
    "execute.reset",
    "execute.stdin",
    "execute.argv",
    "execute.undo",
    "result.notes",
    "result.imports",
    "stream",
    "stream.late",
    "interrupt",
    "status",
    "limits",
    "files",
    "files.direct",
    "files.watch",
    "check",
    "complete",
    "setup",
    "listen",
    "ports",
    "notes",
    "jobs",
    "fork",
)


MAX_FRAME_BYTES = 64 * 1024 * 1024
"""Largest frame in either direction, without its length."""


READ_BYTES = 65536
"""One read: what a pipe holds by default, and less than malloc would get by mmap each time."""


TORN_BYTES = 400
"""Longer than several torn markers in a row. From here on, bytes that begin with no length cannot
be one."""


class FrameError(ValueError):
    """A peer sent something that is not a frame.

    Attributes:
        fatal: the length itself was invalid, so the stream cannot be read any further.
    """

    def __init__(self, message: str, *, fatal: bool = False) -> None:
        super().__init__(message)
        self.fatal = fatal


def encode_frame(message: Mapping[str, Any]) -> bytes:
    """`message` as a frame: 4-byte big-endian length and UTF-8 JSON.

    Lone surrogates stand for bytes of output and names that are not UTF-8. They are escaped as JSON
    does.

    Raises:
        FrameError: it holds NaN or an infinity, or is larger than `MAX_FRAME_BYTES`.
    """
    try:
        data = message.get("data")
        if isinstance(data, str) and len(data) > READ_BYTES and _is_plain(data):
            # A piece of a file. JSON's encoder would look at each character, in ten times as long.
            rest = to_json({key: value for key, value in message.items() if key != "data"})
            text = f'{{"data":"{data}",{rest[1:]}' if len(rest) > 2 else f'{{"data":"{data}"}}'
        else:
            text = to_json(message)
    except (ValueError, RecursionError) as error:
        raise FrameError(f"message is not plain JSON: {error}") from None
    body = text.encode("utf-8", "backslashreplace")
    if len(body) > MAX_FRAME_BYTES:
        raise FrameError(f"frame of {len(body)} bytes exceeds the limit of {MAX_FRAME_BYTES}")
    return len(body).to_bytes(4, "big") + body


def _is_plain(text: str) -> bool:
    """Return whether JSON shows the text unchanged."""
    return text.isascii() and text.isprintable() and '"' not in text and "\\" not in text


def resume_marker(token: str) -> bytes:
    """The 20 bytes by which a new holder of the channel resumes; `token` is 32 hex digits.

    They occur nowhere else in a channel: 0xFFFFFFFF is no valid length and 0xFF not in UTF-8.

    Raises:
        ValueError: `token` is not 16 bytes in hexadecimal.
    """
    raw = bytes.fromhex(token)
    if len(raw) != 16:
        raise ValueError(f"the token has {len(raw)} bytes, expected 16")
    return b"\xff\xff\xff\xff" + raw


RESUMED: dict[str, Any] = {"type": "resume marker"}
"""Result of `MessageReader.next_message` for the resume marker: exactly this object."""


def _refuse_constant(text: str) -> NoReturn:
    raise ValueError(f"{text} is not JSON")


def _refuse_value(value: object) -> NoReturn:
    raise TypeError(f"{type(value).__name__} is not JSON")


# Made once, and called directly: what the package `json` does around them for each text takes as
# long as they do. The last four arguments: no indentation is made, keys are in any order and must
# be texts or numbers, NaN is refused. A value that holds itself is too deep.
_json_pieces: Any = json.encoder.c_make_encoder(  # type: ignore[attr-defined, unused-ignore]
    None, _refuse_value, json.encoder.encode_basestring, None, ":", ",", False, False, False
)

_json_decoder: Any = json.JSONDecoder(parse_constant=_refuse_constant)

_json_scan = _json_decoder.scan_once


def to_json(value: object) -> str:
    """
    Raises:
        TypeError, ValueError, RecursionError: JSON has no such value.
    """
    return "".join(_json_pieces(value, 0))


def from_json(text: str) -> Any:
    """
    Raises:
        ValueError, RecursionError: the text is not JSON.
    """
    try:
        value, end = _json_scan(text, 0)
        if end == len(text):
            return value
    except StopIteration:
        pass
    return _json_decoder.decode(text)  # it has blanks around it, or a mistake that this names


def _decode_body(body: bytes) -> dict[str, Any]:
    try:
        value = from_json(body.decode())
    except (ValueError, RecursionError) as error:
        raise FrameError(f"frame is not valid JSON: {error}") from None
    message = as_object(value)
    if message is None:
        raise FrameError(f"frame must hold a JSON object, found {type(value).__name__}")
    return message


class MessageReader:
    """Cuts a byte stream into messages; does no I/O.

    Args:
        limit: largest accepted frame body, bytes.

    Attributes:
        marker: resume marker to look for, at any point of the stream; empty for none. A torn
            frame before it is dropped.
    """

    def __init__(self, limit: int = MAX_FRAME_BYTES) -> None:
        self.marker = b""
        self._limit = limit
        self._buffer = bytearray()
        self._searched = 0
        self._skipping = False

    def receive_data(self, data: bytes) -> None:
        """Take bytes as they came from the peer, in pieces of any size."""
        self._buffer += data

    def skip_to_marker(self) -> None:
        """Drop everything up to the next resume marker, e.g. the rest of a torn frame."""
        self._skipping = True

    def next_message(self) -> dict[str, Any] | None:
        """The next whole message, `RESUMED` for a resume marker, None when it takes more bytes.

        Raises:
            FrameError: the next frame is invalid. It is skipped unless the error is `fatal`.
        """
        buffer = self._buffer
        if self._skipping:
            return RESUMED if self._cut_at_marker() else None
        if len(buffer) < 4:
            return None
        length = int.from_bytes(buffer[:4], "big")
        end = 4 + length
        fits, whole = length <= self._limit, len(buffer) >= end
        if self.marker and not (fits and whole and b"\xff" not in buffer[4:end]):
            if self._cut_at_marker():
                return RESUMED
            if (fits or len(buffer) < TORN_BYTES) and self._may_end_in_marker():
                return None
        if not fits:
            raise FrameError(
                f"frame length {length} exceeds the limit of {self._limit} bytes", fatal=True
            )
        if not whole:
            return None
        body = bytes(buffer[4:end])
        del buffer[:end]
        self._searched = 0
        return _decode_body(body)

    def _cut_at_marker(self) -> bool:
        """Drop all up to the marker, if it is there: a frame that its writer left unfinished."""
        buffer = self._buffer
        place = buffer.find(self.marker, self._searched)
        if place >= 0:
            del buffer[: place + len(self.marker)]
            self._searched = 0
            self._skipping = False
            return True
        # Every byte is searched once: a frame of many megabytes comes in many pieces.
        self._searched = max(0, len(buffer) - len(self.marker) + 1)
        if self._skipping:
            del buffer[: self._searched]
            self._searched = 0
        return False

    def _may_end_in_marker(self) -> bool:
        """Tell whether the received bytes end with the beginning of a marker.

        A writer that died left a frame or a marker incomplete, and the beginning of what its
        successor sends completes it by chance. A 0xFF gives it away.
        """
        # A whole one was found before: what is looked at is short, whatever a peer sends.
        place = max(0, len(self._buffer) - len(self.marker) + 1)
        while (place := self._buffer.find(b"\xff", place)) >= 0:
            if self.marker.startswith(self._buffer[place:]):
                return True
            place += 1
        return False
