"""Steps of an environment's set-up."""

from __future__ import annotations

from sandbox.execution import GRACE_S
from sandbox.fields import as_object, is_seconds

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

SETUP_EXCERPT_BYTES = 4096
"""Of what a step of a set-up says, beginning and end together, when it fails."""


MAX_SETUP_STEPS = 16


class SetupStep:
    """Code that an interpreter runs before any other, each time it starts.

    Args:
        name: for people.
        timeout_s, grace_s: after that it is interrupted like any execution, and then killed.

    Attributes:
        told: what it failed with, once; later failures are not told again.
        late: other code may have run before it, whose state counts.
    """

    late = False

    def __init__(self, name: str, code: str, timeout_s: float, grace_s: float) -> None:
        self.name = name
        self.code = code
        self.timeout_s = timeout_s
        self.grace_s = grace_s
        self.told = False

    @staticmethod
    def all_of(given: Mapping[str, Any]) -> list[SetupStep]:
        """
        Raises:
            ValueError: they are not as in docs/agent-protocol.md.
        """
        steps: list[Any] | None = given.get("steps")
        timeout_s: Any = given.get("timeout_s")
        grace_s: Any = given.get("grace_s", GRACE_S)
        if type(steps) is not list or len(steps) > MAX_SETUP_STEPS:
            raise ValueError(f"setup needs steps, a list of at most {MAX_SETUP_STEPS}")
        if not is_seconds(timeout_s) or not is_seconds(grace_s):
            raise ValueError("setup needs timeout_s and takes grace_s, seconds")
        found: list[SetupStep] = []
        for step in steps:
            fields = as_object(step) or {}
            name, code = fields.get("name"), fields.get("code")
            if isinstance(name, str) and isinstance(code, str):
                found.append(SetupStep(name, code, float(timeout_s), float(grace_s)))
                continue
            raise ValueError("each step of setup needs a name and code, texts")
        return found
