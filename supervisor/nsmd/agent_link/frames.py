"""Frames that come out of a jail, checked field by field.

Every frame of an agent is untrusted input: code next to the agent may have taken it over. Nothing
here trusts a type, a size or a name; anything that does not fit raises `AgentProtocolError`, which
ends only that session. `docs/contributing/agent-protocol.md` describes the frames.
"""

from __future__ import annotations

import base64
import binascii
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple, TypeGuard, cast

from nsmd.model.head_tail import shortened
from nsmd.model.values import Outcome, StreamName, Truncation

MAX_DISPLAYS = 1000
MAX_NOTES = 8
MAX_NOTE = 400
MAX_TEXT = 64 * 1024 * 1024
MAX_STREAM_BYTES = 4 * 1024 * 1024 + 4096
"""Largest size of one stream in a result: our agents keep no more. Older ones keep all."""
MAX_WORDS = 16 * 1024
"""Largest size of a text that is no output, such as a reason or a path. Ours have a few hundred
characters.
"""
MAX_CHUNK_BYTES = 256 * 1024
"""Largest piece of a file in one frame."""
MAX_NOTED_CODE = 2000
"""Characters of an execution's code that an agent remembers (`NOTED_CODE`)."""
MAX_NOTED = 64
"""Largest number of executions that the agent tells a new owner of the channel. Our agents tell a
few: the running one, and those whose results were not acknowledged.
"""
MAX_ENTRIES = 10_000
"""Largest number of directory entries in one frame."""
MAX_NAME = 1020
"""Characters of a file's name: 255 bytes, each of which may be written as ``\\xff``."""
ENTRY_KINDS = ("file", "directory", "link", "other", "unnamed")
MAX_ID = 256
"""Characters of an id that comes back: of an execution that a client named, or a transfer."""

MAX_MATCHES = 500
MAX_MATCH = 1000
"""Characters of one completion."""
MAX_INDENT = 1000
MAX_CODE = 40

InputStatus = Literal["complete", "incomplete", "invalid", "unknown"]
"""Whether a text is a complete input at a prompt; unknown if nobody could be asked."""
INPUT_STATUSES: tuple[InputStatus, ...] = ("complete", "incomplete", "invalid", "unknown")


class AgentProtocolError(Exception):
    """The agent said something that none of our agents says."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadyFrame:
    """The agent can take work."""

    protocol: int
    python: str
    capabilities: frozenset[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputFrame:
    """A piece of output while an execution runs."""

    id: str
    stream: StreamName
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ResultFrame:
    """An execution has ended."""

    id: str
    outcome: Outcome


@dataclass(frozen=True, slots=True, kw_only=True)
class StatusFrame:
    """Answer to `status`: the running execution and the number of background processes."""

    running: str | None
    background: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ErrorFrame:
    """The agent refused something; `id` is the execution it concerns, if any."""

    id: str | None
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class FileFrame:
    """A transfer is open, or has taken a piece. `size` in bytes; for a write, what was written so
    far.

    `free_bytes` is the room where a file is written, before the write; None if unknown.
    """

    id: str
    path: str
    size: int
    permissions: int
    free_bytes: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class FileDataFrame:
    """A piece of a file that is read; `eof` when nothing follows."""

    id: str
    data: bytes
    eof: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class FileClosedFrame:
    """A transfer has ended as asked; `size` is what was transferred, bytes."""

    id: str
    path: str
    size: int


class Entry(NamedTuple):
    """An entry of a directory: ``file``, ``directory``, ``link``, ``other`` (such as a socket), or
    ``unnamed``: its name is not UTF-8, and is escaped here. `size` is a file's.
    """

    name: str
    kind: str
    size: int


@dataclass(frozen=True, slots=True, kw_only=True)
class FileDirectoryFrame:
    """A directory and what is in it; `whole` if no entry was left out."""

    id: str
    path: str
    entries: tuple[Entry, ...]
    whole: bool
    free_bytes: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class FileErrorFrame:
    """A transfer has failed and ended; `code` is an error number's name, EISDIR, or ""."""

    id: str
    message: str
    code: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class CompletionsFrame:
    """Completions that may replace `code[start:end]`, in code points.

    The frame does not have the code: the caller checks that `end` lies in it.
    """

    id: str
    start: int
    end: int
    matches: tuple[str, ...]
    available: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckedFrame:
    """Answer to the question whether code is complete, with the indentation of the next line."""

    id: str
    status: InputStatus
    indent: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ListeningFrame:
    """A socket listens in the session; its descriptor comes with the frame (`AgentLink`)."""

    id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Noted:
    """An execution whose result the new owner of the channel still has to get.

    Attributes:
        runs: it runs, or waits for its interpreter's set-up; if False, its result follows.
        note: the note that was sent with it; the agent may say anything here.
        code: beginning of its code.
    """

    id: str
    runs: bool
    note: Mapping[str, Any]
    code: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ResumedFrame:
    """First frame for a new owner of the channel.

    Attributes:
        files: open transfers.
        recent: the last executions that had a result, the newest last.
        count: number of executions so far; None if the agent does not say.
    """

    executions: tuple[Noted, ...]
    files: tuple[str, ...]
    recent: tuple[str, ...]
    count: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class OtherFrame:
    """A type that this side does not use (`pong`, `idle`, newer ones)."""

    type: str


TransferFrame = FileFrame | FileDataFrame | FileClosedFrame | FileDirectoryFrame | FileErrorFrame
AgentFrame = (
    ReadyFrame
    | OutputFrame
    | ResultFrame
    | StatusFrame
    | TransferFrame
    | CompletionsFrame
    | CheckedFrame
    | ListeningFrame
    | ErrorFrame
    | ResumedFrame
    | OtherFrame
)


def parse(frame: Mapping[str, Any]) -> AgentFrame:
    """Parse one frame.

    Raises:
        AgentProtocolError: a field is missing or of the wrong type.
    """
    kind = _text(frame, "type")
    match kind:
        case "ready":
            return ReadyFrame(
                protocol=_integer(frame, "protocol", default=0),
                python=_text(frame, "python", default=""),
                capabilities=frozenset(_texts(frame, "capabilities")),
            )
        case "output":
            return OutputFrame(
                id=_text(frame, "id"), stream=_stream(frame), text=_text(frame, "text")
            )
        case "result":
            return ResultFrame(id=_text(frame, "id"), outcome=_outcome(frame))
        case "status":
            return StatusFrame(
                running=_optional_text(frame, "running"),
                background=_integer(frame, "background", default=0),
            )
        case "file" | "file_data" | "file_closed" | "file_directory" | "file_error":
            return _transfer(kind, frame)
        case "completions":
            return _completions(frame)
        case "checked":
            return CheckedFrame(id=_text(frame, "id"), status=_status(frame), indent=_indent(frame))
        case "listening":
            return ListeningFrame(id=_text(frame, "id"))
        case "resumed":
            return _resumed(frame)
        case "error":
            return ErrorFrame(
                id=_optional_text(frame, "id"),
                message=_words(frame, "message", default="the agent reported an error"),
            )
        case _:
            return OtherFrame(type=kind)


def sequence(frame: Mapping[str, Any]) -> int | None:
    """The frame's sequence number, if it has one."""
    value = frame.get("seq")
    return value if _is_integer(value) and value > 0 else None


def _outcome(frame: Mapping[str, Any]) -> Outcome:
    truncated = _truncated(frame)
    return Outcome(
        stdout=_kept(frame, "stdout", truncated),
        stderr=_kept(frame, "stderr", truncated),
        exit_code=_integer(frame, "exit_code"),
        duration_s=_seconds(frame, "duration_s"),
        displays=_displays(frame),
        truncated=truncated,
        timed_out=_flag(frame, "timed_out"),
        interrupted=_flag(frame, "interrupted"),
        interpreter_restarted=_flag(frame, "interpreter_restarted"),
        restart_reason=_words(frame, "restart_reason", default=""),
        notes=tuple(note[:MAX_NOTE] for note in _texts(frame, "notes")[:MAX_NOTES]),
    )


def _kept(frame: Mapping[str, Any], name: StreamName, truncated: dict[str, Truncation]) -> str:
    """Text of a stream, shortened if it is too long for its readers."""
    text, omitted = shortened(_text(frame, name, default=""), MAX_STREAM_BYTES)
    if omitted:
        known = truncated.get(name, Truncation(omitted_bytes=0, file=None))
        truncated[name] = replace(known, omitted_bytes=known.omitted_bytes + omitted)
    return text


def _displays(frame: Mapping[str, Any]) -> tuple[Mapping[str, Any], ...]:
    value = _list(frame.get("displays", []), "displays")
    if len(value) > MAX_DISPLAYS:
        raise AgentProtocolError(f"more than {MAX_DISPLAYS} displays")
    return tuple(_map(bundle, "displays") for bundle in value)


def _truncated(frame: Mapping[str, Any]) -> dict[str, Truncation]:
    streams = _map(frame.get("truncated") or {}, "truncated")
    result: dict[str, Truncation] = {}
    for name in ("stdout", "stderr"):
        if name in streams:
            entry = _map(streams[name], f"truncated.{name}")
            result[name] = Truncation(
                omitted_bytes=_integer(entry, "omitted_bytes"),
                file=None if entry.get("file") is None else _words(entry, "file"),
            )
    return result


def _transfer(kind: str, frame: Mapping[str, Any]) -> TransferFrame:
    id_ = _text(frame, "id")
    match kind:
        case "file":
            return FileFrame(
                id=id_,
                path=_words(frame, "path"),
                size=_count(frame, "size"),
                permissions=_count(frame, "permissions", most=0o7777),
                free_bytes=_free_bytes(frame),
            )
        case "file_data":
            return FileDataFrame(id=id_, data=_chunk(frame), eof=_flag(frame, "eof"))
        case "file_directory":
            return FileDirectoryFrame(
                id=id_,
                path=_words(frame, "path"),
                entries=_entries(frame),
                whole=_flag(frame, "whole"),
                free_bytes=_free_bytes(frame),
            )
        case "file_closed":
            return FileClosedFrame(id=id_, path=_words(frame, "path"), size=_count(frame, "size"))
        case _:
            message = _words(frame, "message", default="the agent could not say why")
            return FileErrorFrame(id=id_, message=message, code=_code(frame))


def _free_bytes(frame: Mapping[str, Any]) -> int | None:
    return None if frame.get("free_bytes") is None else _count(frame, "free_bytes")


def _entries(frame: Mapping[str, Any]) -> tuple[Entry, ...]:
    """Entries of a directory. A name that would lead out of it is a lie."""
    entries: list[Entry] = []
    for told in _list(frame.get("entries"), "entries"):
        if len(entries) == MAX_ENTRIES:
            raise AgentProtocolError(f"more than {MAX_ENTRIES} entries")
        name, kind, size = _three(told)
        if not isinstance(name, str) or not 0 < len(name) <= MAX_NAME or not _is_text(name):
            raise AgentProtocolError("the name of an entry is none that a file could have")
        if name in (".", "..") or "/" in name or "\0" in name:
            raise AgentProtocolError("the name of an entry leads out of its directory")
        if kind not in ENTRY_KINDS:
            raise AgentProtocolError(f"an entry is {kind!r:.50}, not {', '.join(ENTRY_KINDS)}")
        entries.append(Entry(name, kind, _count({"size": size}, "size")))
    return tuple(entries)


def _three(told: object) -> tuple[object, object, object]:
    parts = _list(told, "entries")
    if len(parts) != 3:
        raise AgentProtocolError("an entry is not a name, a kind and a size")
    return parts[0], parts[1], parts[2]


def _is_text(name: str) -> bool:
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True


def _code(frame: Mapping[str, Any]) -> str:
    code = _text(frame, "code", default="")
    if len(code) > MAX_CODE or not code.isascii() or (code and not code.isalnum()):
        raise AgentProtocolError("field 'code' is not the name of an error number")
    return code


def _chunk(frame: Mapping[str, Any]) -> bytes:
    try:
        data = base64.b64decode(_text(frame, "data"), validate=True)
    except (binascii.Error, ValueError) as error:
        raise AgentProtocolError(f"field 'data' is not base64: {error}") from error
    if len(data) > MAX_CHUNK_BYTES:
        raise AgentProtocolError(f"field 'data' has more than {MAX_CHUNK_BYTES} bytes")
    return data


def _resumed(frame: Mapping[str, Any]) -> ResumedFrame:
    notes = _map(frame.get("notes", {}), "notes")
    states = _map(frame.get("executions", {}), "executions")
    if len(states) > MAX_NOTED:
        raise AgentProtocolError(f"more than {MAX_NOTED} executions")
    executions: list[Noted] = []
    for known, state in states.items():
        noted = _map(notes.get(known, {}), "notes")
        executions.append(
            Noted(
                id=_id(known, "executions"),
                runs=state == "running",
                note=_map(noted.get("note", {}), "note"),
                code=_text(noted, "code", default="")[:MAX_NOTED_CODE],
            )
        )
    return ResumedFrame(
        executions=tuple(executions),
        files=tuple(_id(each, "files") for each in _texts(frame, "files")),
        recent=tuple(_id(each, "recent") for each in _texts(frame, "recent")),
        count=_count(frame, "count") if "count" in frame else None,
    )


def _id(value: str, key: str) -> str:
    """Read an id that this side made: it is remembered, and shown to people."""
    if len(value) > MAX_ID or not value.isprintable():
        raise AgentProtocolError(f"an id in {key!r} is not at most {MAX_ID} printable characters")
    return value


def _completions(frame: Mapping[str, Any]) -> CompletionsFrame:
    matches = _list(frame.get("matches", []), "matches")
    if len(matches) > MAX_MATCHES:
        raise AgentProtocolError(f"more than {MAX_MATCHES} matches")
    for match in matches:
        if not isinstance(match, str) or len(match) > MAX_MATCH:
            raise AgentProtocolError(f"a match is not a text of at most {MAX_MATCH} characters")
    end = _count(frame, "end")
    return CompletionsFrame(
        id=_text(frame, "id"),
        start=_count(frame, "start", most=end),
        end=end,
        # For a terminal's menu: characters that would move its cursor are left out. They are not
        # refused, since each Python version counts other characters as printable.
        matches=tuple(match for match in matches if match.isprintable()),
        available=_flag(frame, "available"),
    )


def _status(frame: Mapping[str, Any]) -> InputStatus:
    value = frame.get("status")
    for status in INPUT_STATUSES:
        if value == status:
            return status
    raise AgentProtocolError(f"status is {value!r:.50}, not one of {', '.join(INPUT_STATUSES)}")


def _indent(frame: Mapping[str, Any]) -> str:
    indent = _text(frame, "indent", default="")
    if len(indent) > MAX_INDENT or indent.strip(" \t"):
        raise AgentProtocolError(
            f"field 'indent' is not at most {MAX_INDENT} blanks and tab characters"
        )
    return indent


def _stream(frame: Mapping[str, Any]) -> StreamName:
    match frame.get("stream"):
        case "stdout":
            return "stdout"
        case "stderr":
            return "stderr"
        case other:
            raise AgentProtocolError(f"stream is {other!r:.50}, not 'stdout' or 'stderr'")


def _text(frame: Mapping[str, Any], key: str, *, default: str | None = None) -> str:
    value = frame.get(key, default)
    if not isinstance(value, str) or len(value) > MAX_TEXT:
        raise AgentProtocolError(f"field {key!r} is not a text")
    return value


def _words(frame: Mapping[str, Any], key: str, *, default: str | None = None) -> str:
    value = _text(frame, key, default=default)
    if len(value) > MAX_WORDS:
        raise AgentProtocolError(f"field {key!r} has more than {MAX_WORDS} characters")
    return value


def _optional_text(frame: Mapping[str, Any], key: str) -> str | None:
    return None if frame.get(key) is None else _text(frame, key)


def _texts(frame: Mapping[str, Any], key: str) -> list[str]:
    value = _list(frame.get(key, []), key)
    return [item for item in value[:100] if isinstance(item, str)]


def _integer(frame: Mapping[str, Any], key: str, *, default: int | None = None) -> int:
    value = frame.get(key, default)
    if not _is_integer(value):
        raise AgentProtocolError(f"field {key!r} is not an integer")
    return value


def _count(frame: Mapping[str, Any], key: str, *, most: int = 2**53) -> int:
    value = _integer(frame, key)
    if not 0 <= value <= most:
        raise AgentProtocolError(f"field {key!r} is {value}, not from 0 to {most}")
    return value


def _is_integer(value: object) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool) and abs(value) < 2**53


def _seconds(frame: Mapping[str, Any], key: str) -> float:
    value = frame.get(key, 0.0)
    if isinstance(value, float) and math.isfinite(value):
        return value
    if _is_integer(value):  # bounded: a larger one is no float
        return float(value)
    raise AgentProtocolError(f"field {key!r} is not a finite number")


def _flag(frame: Mapping[str, Any], key: str) -> bool:
    value = frame.get(key, False)
    if not isinstance(value, bool):
        raise AgentProtocolError(f"field {key!r} is not true or false")
    return value


def _list(value: Any, key: str) -> list[Any]:
    if not isinstance(value, list):
        raise AgentProtocolError(f"field {key!r} is not a list")
    return value  # pyright: ignore[reportUnknownVariableType]


def _map(value: object, key: str) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise AgentProtocolError(f"field {key!r} is not a map")
    return cast("dict[str, Any]", value)
