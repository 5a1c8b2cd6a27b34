"""Coding agents that `nsm setup` knows: their files, and what goes where."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, Literal, cast

from nsm import paths
from nsm.dataclass import dataclass

if TYPE_CHECKING:
    from collections.abc import Mapping

NAME = "nsm"
"""Name of the server in the agents' entries, and of the skill."""

PROGRAM = "nsm-mcp"

Kind = Literal["entry", "value", "item", "file"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """Something that a file should hold.

    Attributes:
        kind: `entry` is an MCP server's, `value` some other value, `item` is in an array, `file` is
            a file of nsm's alone.
        keys: the place in the file, from outside.
        value: what is wanted there; of a file, its text.
    """

    path: str
    kind: Kind
    keys: tuple[str, ...] = ()
    value: Any


@dataclass(frozen=True, slots=True, kw_only=True)
class CodingAgent:
    """A coding agent.

    Its name as it is typed, and as its makers write it; all that its files should hold, the entry
    first; and what a person should know besides.
    """

    name: str
    title: str
    wanted: tuple[Wanted, ...]
    note: str = ""


TITLES = {
    "claude": "Claude Code",
    "codex": "Codex",
    "cursor": "Cursor",
    "zed": "Zed",
    "gemini": "Gemini CLI",
    "opencode": "opencode",
    "vscode": "VS Code",
}

_PROGRAMS = {"vscode": "code"}
"""Agents whose programs have another name."""

_GEMINI_POLICY = """\
# Written by `nsm setup gemini`: the tool `run` of nsm's jails needs no confirmation.
[[rule]]
mcpName = "nsm"
toolName = "run"
decision = "allow"
priority = 100
"""

_CURSOR_NOTE = (
    "Cursor takes the tools that need no approval from permissions.json alone once it lists any: "
    "those of its own settings have to be listed there, too."
)
_VSCODE_NOTE = (
    "VS Code has no setting that allows one tool: "
    "choose `Always Allow` when it first asks for `run`."
)


def agent(name: str, program: str, variables: Mapping[str, str]) -> CodingAgent:
    """The agent of a name in `TITLES`, for a path of `nsm-mcp` and an environment: some agents are
    told their directory by it."""
    home = paths.home()
    config = variables.get("XDG_CONFIG_HOME", "")
    config = config if os.path.isabs(config) else f"{home}/.config"
    shared_skill = _skill(f"{home}/.agents/skills")
    note = ""
    server: dict[str, object] = {"command": program, "args": list[str]()}
    keys: tuple[str, ...]
    wanted: tuple[Wanted, ...]
    match name:
        case "claude":
            told = variables.get("CLAUDE_CONFIG_DIR", "")
            base = told or f"{home}/.claude"
            file = f"{told}/.claude.json" if told else f"{home}/.claude.json"
            server = {"type": "stdio", **server, "env": dict[str, str]()}
            rules = f"{base}/settings.json"
            wanted = (
                _entry(file, ("mcpServers", NAME), server),
                Wanted(
                    path=rules, kind="item", keys=("permissions", "allow"), value="mcp__nsm__run"
                ),
                _skill(f"{base}/skills"),
            )
        case "codex":
            file = f"{variables.get('CODEX_HOME') or f'{home}/.codex'}/config.toml"
            keys = ("mcp_servers", NAME)
            approval = (*keys, "tools", "run", "approval_mode")
            wanted = (
                _entry(file, keys, {"command": program}),
                Wanted(path=file, kind="value", keys=approval, value="approve"),
                shared_skill,
            )
        case "cursor":
            rules = f"{home}/.cursor/permissions.json"
            wanted = (
                _entry(f"{home}/.cursor/mcp.json", ("mcpServers", NAME), {"command": program}),
                Wanted(path=rules, kind="item", keys=("mcpAllowlist",), value="nsm:run"),
                shared_skill,
            )
            note = _CURSOR_NOTE
        case "zed":
            file = f"{config}/zed/settings.json"
            server = {"source": "custom", **server}
            keys = ("agent", "tool_permissions", "tools", "mcp:nsm:run", "default")
            wanted = (
                _entry(file, ("context_servers", NAME), server),
                Wanted(path=file, kind="value", keys=keys, value="allow"),
                shared_skill,
            )
        case "gemini":
            base = f"{home}/.gemini"
            wanted = (
                _entry(f"{base}/settings.json", ("mcpServers", NAME), server),
                Wanted(path=f"{base}/policies/nsm.toml", kind="file", value=_GEMINI_POLICY),
                shared_skill,
            )
        case "opencode":
            file = f"{config}/opencode/opencode.json"
            file = f"{file}c" if os.path.lexists(f"{file}c") else file
            # Its version 2 keeps servers below `mcp.servers`, and reads version 1's place, too.
            wanted = (
                _entry(file, ("mcp", NAME), {"type": "local", "command": [program]}),
                Wanted(path=file, kind="value", keys=("permission", "nsm_run"), value="allow"),
                shared_skill,
            )
        case _:
            file = f"{config}/Code/User/mcp.json"
            server = {"type": "stdio", "command": program}
            wanted = (_entry(file, ("servers", NAME), server), shared_skill)
            note = _VSCODE_NOTE
    return CodingAgent(name=name, title=TITLES[name], wanted=wanted, note=note)


def is_installed(agent: CodingAgent, search_path: str) -> bool:
    """Tell whether an agent seems to be installed: its program, or a directory of its settings."""
    file = agent.wanted[0].path
    folder = os.path.dirname(file)
    if os.path.exists(file if folder == paths.home() else folder):
        return True
    return paths.which(_PROGRAMS.get(agent.name, agent.name), search_path) is not None


def skill() -> str:
    """The text of the skill."""
    source = os.path.join(os.path.dirname(__file__), "skill/SKILL.md")
    with open(source, encoding="utf-8") as file:
        return file.read()


def program_of(entry: object) -> str:
    """The program that an MCP entry starts; empty where it names none."""
    command = cast("dict[str, object]", entry).get("command") if isinstance(entry, dict) else None
    if isinstance(command, dict):  # older Zed
        command = cast("dict[str, object]", command).get("path")
    if isinstance(command, list):
        command = next(iter(cast("list[object]", command)), "")
    return command if isinstance(command, str) else ""


def _entry(path: str, keys: tuple[str, ...], server: dict[str, object]) -> Wanted:
    return Wanted(path=path, kind="entry", keys=keys, value=server)


def _skill(directory: str) -> Wanted:
    return Wanted(path=f"{directory}/{NAME}/SKILL.md", kind="file", value=skill())
