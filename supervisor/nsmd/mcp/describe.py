"""Description of the tool for a client, from the current configuration.

All of it together stays under 450 tokens (at four characters each) with three environments;
`tests/supervisor/mcp/test_describe.py` measures.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from nsmd.mcp.text import one_line
from nsmd.model.packages import WELL_KNOWN
from nsmd.model.values import Environment, NetworkRule, ProjectMount

TOOL_NAME = "run"
TITLE = "Run code in a jail"
INSTRUCTIONS = "nsm runs code in jailed sessions on this machine. Use its one tool, `run`."

INSTRUCTIONS_WITH_PROGRAMS = (
    "nsm runs code in jailed sessions on this machine: use its tool `run`. "
    "`list_programs`, `help` and `execute` start chosen programs of the machine itself."
)
"""Instructions if there are programs."""

ASKED_LATER = "the client is asked for it with the first call"
"""Why there is no project yet."""

_NO_SESSIONS = "(no sessions)"

_MAX_LINE_CHARS = 100
"""Largest part of an environment's description, or of a reason: not every author is brief."""

_MOST_PACKAGES = 6
_MAX_PACKAGE_CHARS = 20
"""Packages to name, and characters of each. The error about a missing one names where it is."""

_MOST_HOSTS = 5
_MAX_HOST_CHARS = 60
"""Patterns of hosts to name, and characters of each. A refusal names more."""


def describe(
    environments: Sequence[Environment],
    project: ProjectMount | None,
    reason: str,
    *,
    undo: bool = False,
    fork: bool = False,
) -> str:
    """Make the tool's description."""
    usable = [e for e in environments if e.problem is None and not e.only_programs]
    undoing = "; `undo` takes back its last call (Python; files, too)" if undo else ""
    forking = " `fork_of` copies a session (not Node);" if fork else ""
    lines = ["Run code in a jailed interpreter. `env` (time limit a call; packages):"]
    lines += [_entry(e.name, _text_of(e)) for e in usable]
    if not usable:
        lines = ["Runs code in a jail, but no environment is usable now (`nsm doctor`):"]
        lines += [_entry(e.name, one_line(e.problem or "", _MAX_LINE_CHARS)) for e in environments]
    lines.append(_project_line(project, reason))
    lines.append(f"Writable: /workspace (start directory), /tmp.{_network_sentence(usable)}")
    lines.append(
        "Without `session`, a fresh jail that is thrown away. With one, variables and files stay; "
        f'"new" opens one under a fresh name;{forking} `reset` restarts its interpreter{undoing}. '
        "Longer work: `background` runs `code` as a job beside the interpreter, and returns its "
        "id. `job` without code: what it printed since, and its state; waits `timeout_seconds` for "
        "its end, or with `stop` ends it. Plots come back as images."
    )
    lines.append(
        "`code` goes to the interpreter as it is: print('hi'), not python -c \"print('hi')\"."
    )
    return "\n".join(lines)


def instructions(has_programs: bool) -> str:
    """Describe the server as a whole."""
    return INSTRUCTIONS_WITH_PROGRAMS if has_programs else INSTRUCTIONS


def schema(
    environments: Sequence[Environment], *, undo: bool = False, fork: bool = False
) -> dict[str, Any]:
    """JSON Schema of the tool's arguments."""
    more = {"undo": {"type": "boolean"}} if undo else {}
    if fork:
        more["fork_of"] = {"type": "string"}
    usable = [environment.name for environment in environments if environment.problem is None]
    # An empty enumeration would allow nothing at all, not even the call that says why.
    env = {"type": "string", "enum": usable} if usable else {"type": "string"}
    return {
        "type": "object",
        "properties": {
            "code": {"type": "string", "description": "Source code, not a shell command"},
            "env": env,
            "session": {
                "type": "string",
                "description": 'Name (A-Za-z0-9_.-) or "new"; bound to its env',
            },
            "timeout_seconds": {
                "type": "number",
                "description": "At most, and by default, the environment's limit",
            },
            "background": {"type": "boolean"},
            "job": {"type": "string"},
            "stop": {"type": "boolean"},
            "reset": {"type": "boolean"},
            **more,
        },
        "additionalProperties": False,
    }


def hints(environments: Sequence[Environment]) -> dict[str, bool | str]:
    """Hints for the client's approval dialogue, of what is usable.

    The project on the host is never changed: it is read-only, or a session has a copy. With a
    network code can change what is elsewhere, but only the whole network has what trusts everybody
    who reaches it, such as services on the host's loopback.
    """
    networks = [e.network for e in environments if e.problem is None]
    return {
        "title": TITLE,
        "readOnlyHint": False,
        "destructiveHint": any(network.mode == "full" for network in networks),
        "idempotentHint": False,
        "openWorldHint": any(_network_of(network) for network in networks),
    }


def _text_of(environment: Environment) -> str:
    text = one_line(environment.description or environment.interpreter, _MAX_LINE_CHARS)
    if not environment.keeps_state:
        text = f"{_NO_SESSIONS} {text}"
    text = f"{text}; {environment.timeout_s:g} s"
    if packages := _packages_of(environment):
        text += f"; {packages}"
    network = _network_of(environment.network)
    return f"{text}; network: {network}" if network else text


def _packages_of(environment: Environment) -> str:
    """Modules that are imported already, then packages that somebody asked for, then the best known
    ones of those that are installed.
    """
    named = [module.partition(".")[0] for module in environment.preload]
    named = [name for name in named if environment.has_module(name)]
    named += environment.main_packages
    if environment.interpreter == "python":
        named += [name for name in WELL_KNOWN if name in environment.packages]
    shown = [one_line(name, _MAX_PACKAGE_CHARS) for name in dict.fromkeys(named)]
    return ", ".join(shown[:_MOST_PACKAGES])


def _network_of(network: NetworkRule) -> str:
    """Describe the network; empty for none."""
    match network.mode:
        case "off":
            return ""
        case "full":
            return "everything"
        case "allow":
            shown = [one_line(pattern, _MAX_HOST_CHARS) for pattern in network.allow[:_MOST_HOSTS]]
            if len(network.allow) > _MOST_HOSTS:
                shown.append(f"{len(network.allow) - _MOST_HOSTS} more")
            return ", ".join(shown)


def _network_sentence(usable: Sequence[Environment]) -> str:
    reaching = [e for e in usable if _network_of(e.network)]
    if not reaching:
        return " Network is off."
    return " Otherwise network is off." if len(reaching) < len(usable) else ""


def _entry(name: str, text: str) -> str:
    return f"- {name}: {text}"


def _project_line(project: ProjectMount | None, reason: str) -> str:
    if project is None and reason == ASKED_LATER:
        return f"Project: {ASKED_LATER}."
    if project is None:
        why = one_line(reason, _MAX_LINE_CHARS).rstrip(".")
        return f"No project is mounted: {why or 'none was found'}."
    where = f"Project {one_line(project.path, 200)} is at {project.mount_point}"
    if project.mode == "overlay":
        return f"{where}; changes stay in a copy of the session's own."
    return f"{where}, read-only."
