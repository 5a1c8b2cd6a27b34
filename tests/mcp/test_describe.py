"""What a client is told about the tool."""

from __future__ import annotations

import dataclasses
import json

from fake_runner import ENVIRONMENTS, a_project
from nsmd.mcp import describe
from nsmd.values import Environment

MAX_TOKENS = 450
CHARS_PER_TOKEN = 4


def tokens(environments: tuple[Environment, ...]) -> float:
    """All of what a client puts into its model's context, generously: as JSON, with every key."""
    tool = {
        "name": describe.TOOL_NAME,
        "description": describe.describe(environments, a_project(), ""),
        "inputSchema": describe.schema(),
        "annotations": describe.hints(),
    }
    return (len(json.dumps(tool)) + len(describe.INSTRUCTIONS)) / CHARS_PER_TOKEN


def test_the_budget_with_three_environments() -> None:
    assert tokens(ENVIRONMENTS) < MAX_TOKENS


def test_each_more_costs_a_line() -> None:
    more = Environment(name="science", interpreter="python", description="Python with numpy")
    added = tokens((*ENVIRONMENTS, more)) - tokens(ENVIRONMENTS)
    assert added < 15


def test_everything_a_model_needs_is_there() -> None:
    text = describe.describe(ENVIRONMENTS, a_project("/home/user/src/x"), "")
    assert "- python: Python 3.11.2\n- bash: GNU bash 5.2.15\n- node: Node.js 20.11.1\n" in text
    assert "/home/user/src/x is at /project, read-only" in text
    assert "Network is off" in text
    assert "/workspace" in text
    assert '"new"' in text
    assert "print('hi'), not python -c" in text


def test_unusable_environments_are_left_out_while_there_are_others() -> None:
    broken = dataclasses.replace(ENVIRONMENTS[2], problem="no `node` on PATH")
    text = describe.describe((*ENVIRONMENTS[:2], broken), None, "HOME is never mounted")
    assert "node" not in text
    assert "No project is mounted: HOME is never mounted." in text


def test_where_nothing_is_usable_the_reasons_are_told() -> None:
    broken = dataclasses.replace(ENVIRONMENTS[2], problem="no `node` on PATH")
    text = describe.describe((broken,), None, "")
    assert "no environment is usable" in text
    assert "- node: no `node` on PATH" in text
    assert "none was found" in text


def test_a_description_takes_one_line_whatever_is_in_it() -> None:
    odd = dataclasses.replace(ENVIRONMENTS[0], description="a\nb\x1b[31m" + "c" * 500)
    text = describe.describe((odd,), None, "\n")
    (line,) = [line for line in text.splitlines() if line.startswith("- python")]
    assert line.startswith("- python: a b [31mccc")
    assert len(line) < 120


def test_schema_lists_what_is_checked_by_hand() -> None:
    schema = describe.schema()
    assert list(schema["properties"]) == ["code", "env", "session", "timeout_seconds"]
    assert schema["required"] == ["code", "env"]
    assert schema["additionalProperties"] is False


def test_hints_are_true_while_network_is_off_and_project_read_only() -> None:
    hints = describe.hints()
    assert hints["openWorldHint"] is False
    assert hints["destructiveHint"] is False
    assert hints["readOnlyHint"] is False
