"""The bridge's tools: their description, checks of a call's arguments, and calls: programs listed,
explained, started.

All three together stay under 250 tokens (at four characters each);
`tests/supervisor/mcp/test_describe.py` measures.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, cast

from mcp_types import Tool, ToolAnnotations

from nsm.dataclass import replace
from nsm.wire.errors import BadRequestError, NsmError, did_you_mean
from nsmd.bridge import programs
from nsmd.bridge.bridge import BridgeService
from nsmd.bridge.programs import Caller, ProgramEnd
from nsmd.mcp.clients import (
    Context,
    LineFeed,
    began_before_s,
    number_of,
    outcome_of,
    wants_progress,
)
from nsmd.mcp.render import META_KEY, ToolReply
from nsmd.mcp.text import clean, head_and_tail, settled, shares
from nsmd.model.values import StreamName

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
    """Check the arguments of a call; null counts as left out. Raises `BadRequestError`."""
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
    """Name of the requested program. Raises `BadRequestError`."""
    program = given.get("program")
    if not isinstance(program, str):
        wrong = "is missing" if program is None else "must be a string"
        raise BadRequestError(f"`program` {wrong}.", hint=_EXAMPLES[tool])
    return program


class ProgramTools:
    """Tools for the bridge's programs."""

    def __init__(self, programs: BridgeService, max_result_chars: int) -> None:
        self._programs = programs
        self._max_chars = max_result_chars

    def visible(self, caller: Caller) -> bool:
        """Return whether there is anything to start; if not, the client does not see
        these tools.
        """
        return bool(self._programs.programs(caller))

    def tools(self, result_meta: Mapping[str, Any]) -> list[Tool]:
        """Make the list of tools."""
        return [
            Tool(
                name=name,
                description=DESCRIPTIONS[name],
                input_schema=schema(name),
                annotations=ToolAnnotations.model_validate(hints(name)),
                _meta=dict(result_meta),
            )
            for name in NAMES
        ]

    async def reply(self, ctx: Context, caller: Caller, name: str, arguments: object) -> ToolReply:
        """Answer a call of one of the tools. Raises `NsmError`."""
        if name == EXECUTE:
            return await self._execute(ctx, caller, arguments)
        given = parse(name, arguments)
        if name == HELP:
            asked = program_of(name, given)
            return self._text(programs.help_text(self._programs.program(caller, asked)))
        return self._text(programs.list_text(self._programs.programs(caller)))

    def refuse(self, caller: Caller, arguments: object, why: str) -> None:
        """Record a call of a client that has no such tool; quick."""
        given: Mapping[str, object] = {}
        if isinstance(arguments, dict):
            given = cast("Mapping[str, object]", arguments)
        with suppress(NsmError):  # there is no bridge, or too many calls are under way
            self._programs.submit(
                caller,
                given.get("program"),
                given.get("args"),
                _unheard,
                call_id=secrets.token_hex(16),
                refusal=BadRequestError(why),
            )

    async def _execute(self, ctx: Context, caller: Caller, arguments: object) -> ToolReply:
        refusal: NsmError | None = None
        given: Mapping[str, object] = {}
        try:
            given = parse(EXECUTE, arguments)
        except BadRequestError as error:
            refusal = error  # it is recorded like any other
            if isinstance(arguments, dict):
                given = cast("Mapping[str, object]", arguments)
        number = number_of(ctx)
        feed = LineFeed(began_before_s(ctx)) if wants_progress(ctx) else None
        call = self._programs.submit(
            caller,
            given.get("program"),
            given.get("args"),
            feed.add if feed is not None else _unheard,
            call_id=secrets.token_hex(16) if number is None else number.execution_id,
            again=number is not None and number.again_s is not None,
            refusal=refusal,
        )
        return self._render(await outcome_of(call, ctx, feed))

    def _render(self, ended: ProgramEnd) -> ToolReply:
        # Each stream has its share, like those of `run`.
        stdout, stderr = settled(clean(ended.stdout)), settled(clean(ended.stderr))
        grants = shares([len(stdout), len(stderr)], self._max_chars)
        stdout, left_of_stdout = head_and_tail(stdout, grants[0], ended.stdout_omitted)
        stderr, left_of_stderr = head_and_tail(stderr, grants[1], ended.stderr_omitted)
        return ToolReply(
            text=programs.result_text(replace(ended, stdout=stdout, stderr=stderr)),
            is_error=not ended.succeeded,
            meta={META_KEY: _extras(ended, left_of_stdout + left_of_stderr)},
        )

    def _text(self, text: str) -> ToolReply:
        shown, _ = head_and_tail(clean(text), self._max_chars)
        return ToolReply(text=shown, is_error=False, meta={})


def _extras(ended: ProgramEnd, omitted_chars: int) -> dict[str, Any]:
    return {
        "exit_code": ended.exit_code,
        "signal": ended.signal,
        "why_stopped": ended.why_stopped,
        "duration_s": round(ended.duration_s, 6),
        "timeout_s": ended.timeout_s,
        "left": ended.left,
        "omitted_bytes": {"stdout": ended.stdout_omitted, "stderr": ended.stderr_omitted},
        "omitted_chars": omitted_chars,
    }


def _unheard(stream: StreamName, line: str) -> None:
    """Drop a line: the client wants no progress, and the result has what fits."""
    del stream, line
