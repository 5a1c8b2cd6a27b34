"""Requests of the supervisor: their fields, read and checked, and those to run code as values."""

from __future__ import annotations

import re
from base64 import b64decode

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any, TypeGuard, TypeVar

    Default = TypeVar("Default")


_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*", re.ASCII)
_MODULE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*(\.[A-Za-z_][A-Za-z0-9_]*)*", re.ASCII)

MAX_MODULE = 100
"""Characters of a module's name."""


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
    value = message.get(name)
    if value is None:
        return default
    if not is_seconds(value):
        raise RequestError(f"{name} must be a number of seconds, 0 or more")
    return value


def whole_field(
    message: Mapping[str, Any], name: str, default: Default, *, low: int = 0, high: int = 2**53
) -> int | Default:
    """Read a field; RequestError if it is there, and no whole number in these bounds."""
    value = message.get(name)
    if value is None:
        return default
    if not is_whole(value) or not low <= value <= high:
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
    """The bytes of `data`, which is base64; none where it is left out.

    Raises:
        RequestError: it is something else.
    """
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
    return isinstance(value, int) and not isinstance(value, bool)


def is_seconds(value: object) -> TypeGuard[float]:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and 0 <= value < 1e9


GRACE_S = 2.0
"""Time between the interrupt and the kill, where the request does not say."""

MAX_SETUP_STEPS = 16


class ExecuteRequest:
    """An `execute`.

    Raises:
        RequestError: it is not as in docs/contributing/agent-protocol.md.
    """

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
        self.argv = argv if are_arguments(argv) else []
        self.note = as_object(message.get("note"))
        self.undo: object = message.get("undo")
        self.stdin = message.get("stdin") is True
        self.stream = message.get("stream") is True
        self.reset = message.get("reset") is True
        self.one_shot = message.get("one_shot") is True


class Step:
    """Code that an interpreter runs before any other, each time it starts.

    Args:
        name: for people.
        timeout_s, grace_s: after that it is interrupted like any execution, and then killed.

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
    """Read the steps of the set-up of an interpreter.

    Raises:
        RequestError: they are not as in docs/contributing/agent-protocol.md.
    """
    steps: list[Any] | None = setup.get("steps")
    if type(steps) is not list or len(steps) > MAX_SETUP_STEPS:
        raise RequestError(f"setup needs steps, a list of at most {MAX_SETUP_STEPS}")
    times_s = (
        seconds_field(setup, "timeout_s", None),
        seconds_field(setup, "grace_s", GRACE_S),
    )
    if times_s[0] is None:
        raise RequestError("setup needs timeout_s")
    return [
        Step(
            text_field(step, "name"),
            text_field(step, "code"),
            times_s[0],
            times_s[1],
            preloads=step.get("preloads") is True,
        )
        for step in (as_object(each) or {} for each in steps)
    ]
