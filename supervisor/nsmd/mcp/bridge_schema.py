"""Description of the bridge's tools for a client, and checks of a call's arguments.

All three together stay under 250 tokens (at four characters each);
`tests/supervisor/mcp/test_bridge_schema.py` measures.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

from nsm.suggestion import did_you_mean
from nsm.wire.errors import BadRequestError

LIST = "list_programs"
HELP = "help"
EXECUTE = "execute"
NAMES = (LIST, HELP, EXECUTE)

DESCRIPTIONS: Mapping[str, str] = {
    LIST: "List the host programs that `execute` can start.",
    HELP: "Documentation of a host program.",
    EXECUTE: "Start a host program, outside of any jail. No shell: `args` arrive as they are.",
}

_PROGRAM = {"type": "string"}
_PROPERTIES: Mapping[str, Mapping[str, Any]] = {
    LIST: {},
    HELP: {"program": _PROGRAM},
    EXECUTE: {"program": _PROGRAM, "args": {"type": "array", "items": {"type": "string"}}},
}
_EXAMPLES: Mapping[str, str] = {
    LIST: "It takes no arguments.",
    HELP: 'Example: {"program": "deploy"}.',
    EXECUTE: 'Example: {"program": "deploy", "args": ["v1.2"]}.',
}


def schema(tool: str) -> dict[str, Any]:
    """JSON Schema of a tool's arguments."""
    properties = dict(_PROPERTIES[tool])
    made: dict[str, Any] = {
        "type": "object",
        "properties": properties,
        "additionalProperties": False,
    }
    if properties:
        made["required"] = ["program"]
    return made


def hints(tool: str) -> dict[str, bool]:
    """Hints for the client's approval dialogue: nsm does not know what a program does."""
    if tool == EXECUTE:
        return {"readOnlyHint": False, "destructiveHint": True, "openWorldHint": True}
    return {"readOnlyHint": True, "openWorldHint": False}


def parse(tool: str, arguments: object) -> Mapping[str, object]:
    """Check the arguments of a call; null counts as left out.

    Raises:
        BadRequestError: the message says what was expected.
    """
    if arguments is None:
        return {}
    if not isinstance(arguments, dict):
        raise BadRequestError("The arguments must be an object.", hint=_EXAMPLES[tool])
    given = cast("Mapping[str, object]", arguments)
    known = list(_PROPERTIES[tool])
    for name in given:
        if name not in known:
            guess = did_you_mean(name, known, cutoff=0.5)
            raise BadRequestError(
                f"`{tool}` has no argument {name[:60]!r}.", hint=f"{guess}{_EXAMPLES[tool]}"
            )
    return given


def program_of(tool: str, given: Mapping[str, object]) -> str:
    """Name of the requested program.

    Raises:
        BadRequestError: there is none.
    """
    program = given.get("program")
    if not isinstance(program, str):
        wrong = "is missing" if program is None else "must be a string"
        raise BadRequestError(f"`program` {wrong}.", hint=_EXAMPLES[tool])
    return program
