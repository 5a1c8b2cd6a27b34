"""Requests of the supervisor to run code, as values."""

from __future__ import annotations

from sandbox.fields import (
    RequestError,
    are_arguments,
    as_object,
    seconds_field,
    text_field,
    whole_field,
)
from sandbox.limits import GRACE_S

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any


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
