"""Step of an environment's set-up."""

from __future__ import annotations

from nsm.dataclass import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class SetupStep:
    """Code that an interpreter runs before any other (agent-protocol.md, `setup`).

    Attributes:
        name: name for people, if it fails.
        code: code for the interpreter.
        preloads: it imports modules that the interpreter may have already, as a fork.
    """

    name: str
    code: str
    preloads: bool = False
