"""What comes out of a jail, checked field by field.

Every frame of an agent is untrusted input: code next to the agent may have taken it over. Nothing
here trusts a type, a size or a name; what does not fit raises `AgentProtocolError`, which ends that
session and nothing else. The frames are described in `docs/agent-protocol.md`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeGuard, cast

from nsmd.values import Outcome, StreamName, Truncation

MAX_DISPLAYS = 1000
MAX_TEXT = 64 * 1024 * 1024
MAX_WORDS = 16 * 1024
"""Of a text that is no output: a reason, a path. Ours have a few hundred characters."""


class AgentProtocolError(Exception):
    """The agent said something that no agent of ours says."""


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
class OtherFrame:
    """A type that this side has no use for (`pong`, `idle`, newer ones)."""

    type: str


AgentFrame = ReadyFrame | OutputFrame | ResultFrame | StatusFrame | ErrorFrame | OtherFrame


def parse(frame: Mapping[str, Any]) -> AgentFrame:
    """One frame as a value.

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
    return Outcome(
        stdout=_text(frame, "stdout", default=""),
        stderr=_text(frame, "stderr", default=""),
        exit_code=_integer(frame, "exit_code"),
        duration_s=_seconds(frame, "duration_s"),
        displays=_displays(frame),
        truncated=_truncated(frame),
        timed_out=_flag(frame, "timed_out"),
        interrupted=_flag(frame, "interrupted"),
        interpreter_restarted=_flag(frame, "interpreter_restarted"),
        restart_reason=_words(frame, "restart_reason", default=""),
    )


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
