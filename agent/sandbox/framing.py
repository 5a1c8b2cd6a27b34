"""Frames: a length and a JSON object; the agent speaks them with supervisor and interpreters.

Also what the supervisor's are: the version of the protocol, what of it this agent can, and the
fields of requests, read and checked.
"""

from __future__ import annotations

import json
import re
from base64 import b64decode

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any, NoReturn, TypeGuard, TypeVar

    Default = TypeVar("Default")


AGENT_VERSION = "0.3.0"

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
    "names",
    "ports",
    "runners",
    "notes",
    "jobs",
    "fork",
    "fork.failed",
)

MAX_FRAME_BYTES = 64 * 1024 * 1024
"""Largest frame in either direction, without its length."""

READ_BYTES = 65536
"""One read: what a pipe holds by default, and less than malloc would get by mmap each time."""

TORN_BYTES = 400
"""Longer than several torn markers in a row. From here on, bytes that begin with no length cannot
be one."""


class FrameError(ValueError):
    """A peer sent something that is not a frame; if `fatal`, the length itself was invalid, so the
    stream cannot be read any further."""

    def __init__(self, message: str, *, fatal: bool = False) -> None:
        super().__init__(message)
        self.fatal = fatal


def encode_frame(message: Mapping[str, Any]) -> bytes:
    """`message` as a frame: 4-byte big-endian length and UTF-8 JSON.

    Lone surrogates stand for bytes of output and names that are not UTF-8. They are escaped as JSON
    does. Raise FrameError if it holds NaN or an infinity, or is larger than `MAX_FRAME_BYTES`.
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

    They occur nowhere else in a channel: 0xFFFFFFFF is no valid length and 0xFF not in UTF-8. Raise
    ValueError if `token` is not 16 bytes in hexadecimal.
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
    """Raise TypeError, ValueError or RecursionError if JSON has no such value."""
    return "".join(_json_pieces(value, 0))


def from_json(text: str) -> Any:
    """Raise ValueError or RecursionError if the text is not JSON."""
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

    It looks for the resume marker, if there is one, at any point of the stream. A torn frame before
    it is dropped.
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
        Raise FrameError if the next frame is invalid. It is skipped unless the error is `fatal`."""
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


_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*", re.ASCII)
_MODULE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*(\.[A-Za-z_][A-Za-z0-9_]*)*", re.ASCII)

MAX_MODULE = 100
"""Characters of a module's name."""

MAX_SECONDS = 1e9


class RequestError(ValueError):
    """A request cannot be carried out; the message says why."""


def text_field(message: Mapping[str, Any], name: str) -> str:
    """Read a field; RequestError if it is not there, or no text."""
    value = message.get(name)
    if not isinstance(value, str):
        raise RequestError(f"{name} must be a text")
    return value


def seconds_field(message: Mapping[str, Any], name: str, default: Default) -> float | Default:
    """Read a field; RequestError if it is there, and no number of seconds."""
    value: float | None = message.get(name)
    if value is None:
        return default
    if type(value) not in (int, float) or not 0 <= value < MAX_SECONDS:
        raise RequestError(f"{name} must be a number of seconds, 0 or more")
    return value


def whole_field(
    message: Mapping[str, Any], name: str, default: Default, *, low: int = 0, high: int = 2**53
) -> int | Default:
    """Read a field; RequestError if it is there, and no whole number in these bounds."""
    value = message.get(name)
    if value is None:
        return default
    if type(value) is not int or not low <= value <= high:
        most = "or more" if high == 2**53 else f"to {high}"
        raise RequestError(f"{name} must be a whole number, {low} {most}")
    return value


def flag_field(message: Mapping[str, Any], name: str, *, default: bool) -> bool:
    """Read a field; RequestError if it is there, and neither true nor false."""
    value = message.get(name, default)
    if not isinstance(value, bool):
        raise RequestError(f"{name} must be true or false")
    return value


def data_field(message: Mapping[str, Any]) -> bytes:
    """The bytes of `data`, which is base64; none where it is left out. Raise RequestError if it is
    something else."""
    try:
        return b64decode(message.get("data", ""), validate=True)
    except (ValueError, TypeError):
        raise RequestError("data must be base64") from None


def as_object(value: Any) -> dict[str, Any] | None:
    """`value` if it is a JSON object; what JSON makes has text keys."""
    found: Any = value
    return found if isinstance(value, dict) else None


def as_texts(value: Any) -> dict[str, str] | None:
    """Variables as a frame has them; None where they are none. They may be left out."""
    found = {} if value is None else as_object(value)
    if found is None:
        return None
    for name, text in found.items():
        if not _VARIABLE.fullmatch(name) or not isinstance(text, str) or "\0" in text:
            return None
    return found


def is_module_name(value: object) -> TypeGuard[str]:
    return isinstance(value, str) and len(value) <= MAX_MODULE and bool(_MODULE.fullmatch(value))


def are_arguments(value: Any) -> TypeGuard[list[str]]:
    """Tell whether this is a list of a program and its arguments."""
    items: list[Any] = value
    return isinstance(value, list) and bool(items) and all(map(is_argument, items))


def is_argument(value: object) -> bool:
    return isinstance(value, str) and "\0" not in value


def is_id(value: object) -> TypeGuard[str | int]:
    return isinstance(value, (str, int)) and not isinstance(value, bool)


def is_whole(value: object) -> TypeGuard[int]:
    return type(value) is int


def is_seconds(value: object) -> TypeGuard[float]:
    return isinstance(value, (int, float)) and type(value) is not bool and 0 <= value < MAX_SECONDS


GRACE_S = 2.0
"""Time between the interrupt and the kill, where the request does not say."""

MAX_SETUP_STEPS = 16


class ExecuteRequest:
    """An `execute`. Raise RequestError if it is not as in docs/contributing/agent-protocol.md."""

    def __init__(self, message: Mapping[str, Any]) -> None:
        self.id: str | int = message["id"]
        self.code = text_field(message, "code")
        self.interpreter: object = message.get("interpreter")
        self.timeout_s = seconds_field(message, "timeout_s", None)
        self.grace_s = seconds_field(message, "grace_s", GRACE_S)
        self.reply_bytes = whole_field(message, "reply_bytes", None, low=1)
        self.reply_chars = whole_field(message, "reply_chars", None, low=1)
        self.acknowledged = whole_field(message, "ack", None)
        argv = message.get("argv")
        self.argv = argv if argv is not None and are_arguments(argv) else []
        self.note = as_object(message.get("note"))
        self.undo: object = message.get("undo")
        self.stdin = message.get("stdin") is True
        self.stream = message.get("stream") is True
        self.reset = message.get("reset") is True
        self.one_shot = message.get("one_shot") is True


class Step:
    """Code that an interpreter runs before any other, each time it starts.

    Attributes:
        told: its failure was reported; later failures are not.
        preloads: it imports modules that a fork of an image's Python has already.
        late: other code may have run before it, whose state counts.
    """

    late = False

    def __init__(
        self, name: str, code: str, timeout_s: float, grace_s: float, *, preloads: bool = False
    ) -> None:
        self.name = name
        self.code = code
        self.timeout_s = timeout_s
        self.grace_s = grace_s
        self.told = False
        self.preloads = preloads


def steps_of(setup: Mapping[str, Any]) -> list[Step]:
    """Read the steps of the set-up of an interpreter. Raise RequestError if they are not as in
    docs/contributing/agent-protocol.md."""
    steps: list[Any] | None = setup.get("steps")
    if type(steps) is not list or len(steps) > MAX_SETUP_STEPS:
        raise RequestError(f"setup needs steps, a list of at most {MAX_SETUP_STEPS}")
    timeout_s = seconds_field(setup, "timeout_s", None)
    grace_s = seconds_field(setup, "grace_s", GRACE_S)
    if timeout_s is None:
        raise RequestError("setup needs timeout_s")
    return [
        Step(
            text_field(step, "name"),
            text_field(step, "code"),
            timeout_s,
            grace_s,
            preloads=step.get("preloads") is True,
        )
        for step in (as_object(each) or {} for each in steps)
    ]
