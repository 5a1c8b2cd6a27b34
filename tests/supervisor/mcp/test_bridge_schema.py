"""Description of the bridge's tools for a client."""

from __future__ import annotations

import json
import re
import time
from typing import TYPE_CHECKING, Any

import pytest

from nsm.wire.errors import BadRequestError
from nsmd.mcp import bridge_tools, run_tool

if TYPE_CHECKING:
    from collections.abc import Mapping

MAX_TOKENS = 250
CHARS_PER_TOKEN = 4


def test_the_budget() -> None:
    """All of what a client puts into its model's context, generously: as JSON, with every key."""
    tools = [
        {
            "name": name,
            "description": bridge_tools.DESCRIPTIONS[name],
            "inputSchema": bridge_tools.schema(name),
            "annotations": bridge_tools.hints(name),
        }
        for name in bridge_tools.NAMES
    ]
    more = len(run_tool.instructions(True)) - len(run_tool.instructions(False))
    assert (len(json.dumps(tools)) + more) / CHARS_PER_TOKEN < MAX_TOKENS


def test_instructions_name_each_tool_and_nothing_where_there_are_none() -> None:
    for name in bridge_tools.NAMES:
        assert f"`{name}`" in run_tool.instructions(True)
    assert run_tool.instructions(False) == run_tool.INSTRUCTIONS


def test_what_a_program_does_nobody_here_knows() -> None:
    assert bridge_tools.hints("execute") == {
        "readOnlyHint": False,
        "destructiveHint": True,
        "openWorldHint": True,
    }
    for name in ("list_programs", "help"):
        assert bridge_tools.hints(name)["readOnlyHint"] is True


@pytest.mark.parametrize(
    ("tool", "arguments", "given"),
    [
        ("list_programs", None, {}),
        ("list_programs", {}, {}),
        ("help", {"program": "a"}, {"program": "a"}),
        ("execute", {"program": "a", "args": None}, {"program": "a", "args": None}),
        ("execute", {"program": 1, "args": "x"}, {"program": 1, "args": "x"}),
    ],
)
def test_what_is_taken(tool: str, arguments: object, given: Mapping[str, Any]) -> None:
    assert bridge_tools.parse(tool, arguments) == given


@pytest.mark.parametrize(
    ("tool", "arguments", "says"),
    [
        ("execute", ["deploy"], "The arguments must be an object."),
        ("execute", {"argv": []}, "`execute` has no argument 'argv'.\nDid you mean 'args'?"),
        ("execute", {"command": "x"}, "no argument 'command'.\nExample: {"),
        ("help", {"args": []}, "`help` has no argument 'args'."),
        ("list_programs", {"program": "a"}, "It takes no arguments."),
    ],
)
def test_what_is_not_says_what_is(tool: str, arguments: object, says: str) -> None:
    with pytest.raises(BadRequestError, match=re.escape(says.partition("\n")[0])) as raised:
        bridge_tools.parse(tool, arguments)
    assert says in f"{raised.value.message}\n{raised.value.hint}"


def test_a_long_unknown_argument_costs_little() -> None:
    """Compared with what is known, three megabytes would take a second of the event loop."""
    name = "program" + "".join(chr(0x4E00 + n) for n in range(5000)) * 600
    began_s = time.process_time()
    with pytest.raises(BadRequestError, match="has no argument"):
        bridge_tools.parse("execute", {name: 1})
    assert time.process_time() - began_s < 0.2


def test_a_name_is_text() -> None:
    assert bridge_tools.program_of("help", {"program": "a"}) == "a"
    with pytest.raises(BadRequestError, match="`program` is missing"):
        bridge_tools.program_of("help", {})
    with pytest.raises(BadRequestError, match="`program` must be a string"):
        bridge_tools.program_of("help", {"program": ["a"]})
