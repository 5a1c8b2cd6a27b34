"""What a client is told about the tool, from what is configured now.

All of it together stays under 450 tokens (at four characters each) with three environments;
`tests/mcp/test_describe.py` measures.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from nsmd.mcp.text import one_line
from nsmd.values import Environment, ProjectMount

TOOL_NAME = "run"
TITLE = "Run code in a jail"
INSTRUCTIONS = "nsm runs code in jailed sessions on this machine. Use its one tool, `run`."

_NO_SESSIONS = "(no sessions)"

_MAX_LINE_CHARS = 100
"""Of one environment's description, and of a reason: whoever wrote it may not have been brief."""


def describe(environments: Sequence[Environment], project: ProjectMount | None, reason: str) -> str:
    """The tool's description.

    Args:
        environments: all that are configured, unusable ones included.
        project: what this client's sessions see; None for nothing.
        reason: why there is no project.
    """
    usable = [e for e in environments if e.problem is None]
    lines = ["Run code in a jailed interpreter. `env` is one of:"]
    lines += [_entry(e.name, _text_of(e)) for e in usable]
    if not usable:
        lines = ["Runs code in a jail, but no environment is usable now (`nsm doctor`):"]
        lines += [_entry(e.name, e.problem or "") for e in environments]
    lines.append(_project_line(project, reason))
    lines.append("Writable: /workspace (start directory), /tmp. Network is off.")
    lines.append(
        "Without `session`, a fresh jail that is thrown away. With one, variables and files "
        'last until a later call; "new" opens one under a fresh name.'
    )
    lines.append(
        "`code` goes to the interpreter as it is: print('hi'), not python -c \"print('hi')\"."
    )
    return "\n".join(lines)


def schema() -> dict[str, Any]:
    """JSON Schema of the tool's arguments."""
    return {
        "type": "object",
        "properties": {
            "code": {"type": "string", "description": "Source code, not a shell command"},
            "env": {"type": "string", "description": "Environment"},
            "session": {
                "type": "string",
                "description": 'Name (A-Za-z0-9_.-) or "new"; bound to its env',
            },
            "timeout_seconds": {
                "type": "number",
                "description": "At most, and by default, the environment's limit",
            },
        },
        "required": ["code", "env"],
        "additionalProperties": False,
    }


def hints() -> dict[str, bool | str]:
    """Hints for the client's approval dialogue: true while the network is off and the project
    read-only."""
    return {
        "title": TITLE,
        "readOnlyHint": False,
        "destructiveHint": False,
        "idempotentHint": False,
        "openWorldHint": False,
    }


def _text_of(environment: Environment) -> str:
    text = environment.description or environment.interpreter
    return text if environment.keeps_state else f"{_NO_SESSIONS} {text}"


def _entry(name: str, text: str) -> str:
    return f"- {name}: {one_line(text, _MAX_LINE_CHARS)}"


def _project_line(project: ProjectMount | None, reason: str) -> str:
    if project is None:
        why = one_line(reason, _MAX_LINE_CHARS).rstrip(".")
        return f"No project is mounted: {why or 'none was found'}."
    return f"Project {one_line(project.path, 200)} is at {project.mount_point}, read-only."
