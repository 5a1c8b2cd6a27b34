"""A step that an interpreter runs before any other code."""

from __future__ import annotations

from nsm.dataclass import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class SetupStep:
    """Code that an interpreter runs before any other (agent-protocol.md, `setup`).

    Attributes:
        name: name for people, if it fails.
        code: code for the interpreter.
    """

    name: str
    code: str
