"""Entries of MCP clients that start `nsm-mcp`, and whether they lead to this nsm.

These are other programs' files: nsm only reads them, and skips what it does not know. It never
shows their secrets: of an entry's variables it uses only its own.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import tomllib
from collections.abc import Callable, Iterator, Mapping
from typing import Any, cast

from nsm.checks import HostCheck, ok, rows, warn
from nsm.dataclass import dataclass
from nsm.setup.json_text import value_of
from nsmd.doctor.system import Host

PROGRAM = "nsm-mcp"

_STARTS_US = re.compile(r"(^|[/#:= ])nsm-mcp\b|\bnsm\.shim\b")

Table = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerEntry:
    """A server that a client starts: the place of its entry, and the command with arguments."""

    client: str
    file: str
    name: str
    command: tuple[str, ...]
    variables: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class _Place:
    """A file of a client; `~` is the home directory, `.` the working directory."""

    client: str
    path: str
    servers: Callable[[Table], Iterator[tuple[str, object]]]


def _under(*keys: str) -> Callable[[Table], Iterator[tuple[str, object]]]:
    """Reader of the servers in a table below these keys."""

    def servers(top: Table) -> Iterator[tuple[str, object]]:
        table = top
        for key in keys:
            value = table.get(key)
            if not isinstance(value, dict):
                return
            table = cast("Table", value)
        yield from table.items()

    return servers


def _claude_code(top: Table) -> Iterator[tuple[str, object]]:
    yield from _under("mcpServers")(top)
    projects = top.get("projects")
    if isinstance(projects, dict):
        for path, project in cast("Table", projects).items():
            if isinstance(project, dict):
                for name, server in _under("mcpServers")(cast("Table", project)):
                    yield f"{name} (project {path})", server


PLACES = (
    _Place("Claude Code", "~/.claude.json", _claude_code),
    _Place("Claude Code", "./.mcp.json", _under("mcpServers")),
    _Place("Claude Desktop", "~/.config/Claude/claude_desktop_config.json", _under("mcpServers")),
    _Place("Cursor", "~/.cursor/mcp.json", _under("mcpServers")),
    _Place("Cursor", "./.cursor/mcp.json", _under("mcpServers")),
    _Place("Codex", "~/.codex/config.toml", _under("mcp_servers")),
    _Place("Copilot", "~/.copilot/mcp-config.json", _under("mcpServers")),
    _Place("Gemini", "~/.gemini/settings.json", _under("mcpServers")),
    _Place("Gemini", "./.gemini/settings.json", _under("mcpServers")),
    _Place("opencode", "~/.config/opencode/opencode.json", _under("mcp")),
    _Place("opencode", "~/.config/opencode/opencode.jsonc", _under("mcp")),
    _Place("opencode", "./opencode.json", _under("mcp")),
    _Place("opencode", "./opencode.jsonc", _under("mcp")),
    _Place("VS Code", "~/.config/Code/User/mcp.json", _under("servers")),
    _Place("VS Code", "~/.config/Code/User/settings.json", _under("mcp", "servers")),
    _Place("VS Code", "./.vscode/mcp.json", _under("servers")),
    _Place("Windsurf", "~/.codeium/windsurf/mcp_config.json", _under("mcpServers")),
    _Place("Zed", "~/.config/zed/settings.json", _under("context_servers")),
    _Place("Zed", "./.zed/settings.json", _under("context_servers")),
)
"""Places where clients on Linux keep their entries."""


def check_clients(host: Host) -> list[HostCheck]:
    """A row for each entry that starts nsm, and one if there is none."""
    none = ok(f"no editor starts {PROGRAM} yet; `nsm setup` gives nsm to one")
    return rows(("client", _entries(host))) or rows(("clients", none))


def _entries(host: Host) -> Iterator[HostCheck]:
    seen: set[tuple[str, str]] = set()
    for place in PLACES:
        path = _path(place.path, host)
        key = place.client, os.path.realpath(host.real(path))
        if key in seen:  # the working directory is the home directory
            continue
        seen.add(key)
        text = host.read(path)
        if text is None:
            continue
        try:
            top = _parsed(path, text)
        except (ValueError, RecursionError):
            if _STARTS_US.search(text):
                yield warn(
                    f"{path} names {PROGRAM}, and is not valid, so that the client may ignore it",
                    "Correct it: it has to be JSON, for Codex TOML.",
                    of=place.client,
                )
            continue
        if not isinstance(top, dict):
            continue
        for name, server in place.servers(cast("Table", top)):
            entry = _entry(place.client, path, name, server)
            if entry is not None and _STARTS_US.search(" ".join(entry.command)):
                yield _check_entry(entry, host)


def _check_entry(entry: ServerEntry, host: Host) -> HostCheck:
    """Check whether an entry leads to this nsm, and to the supervisor that is checked here."""
    where = f"{entry.name} in {entry.file}"
    for problem, fix in _problems(entry, host):
        return warn(f"{where}: {problem}", fix, of=entry.client)
    return ok(f"{where} starts {entry.command[0]}", of=entry.client)


def _problems(entry: ServerEntry, host: Host) -> Iterator[tuple[str, str]]:
    program = entry.command[0]
    ours = host.shim or PROGRAM
    if "/" in program and not os.path.isabs(program):
        yield (
            f"{program} is relative to wherever the client happens to start it",
            f"Name the program by its absolute path: {ours}",
        )
    path = program if os.path.isabs(program) else shutil.which(program, path=host.search_path)
    if path is None:
        yield (
            f"{program} is not on PATH",
            f"Name the program by its absolute path: {ours}",
        )
        return
    if not os.access(host.real(path), os.X_OK) or os.path.isdir(host.real(path)):
        yield (
            f"{path} is not there, or no program",
            f"Install nsm there again, or name the one that is: {ours}",
        )
    if os.path.basename(program) == PROGRAM and host.shim:
        there, here = (os.path.realpath(host.real(each)) for each in (path, host.shim))
        if there != here:
            yield (
                f"starts {path}, of another installation than this one",
                f"If that is not what you want, name this one: {host.shim}",
            )
    if not os.path.isabs(program) and os.path.basename(program) == PROGRAM:
        usual = shutil.which(program, path="/usr/local/bin:/usr/bin:/bin")
        if usual is None and not host.exists(f"{host.home}/.local/bin/{PROGRAM}"):
            yield (
                f"finds {program} on your PATH, at {path}; editors often have a shorter one",
                f"Name the program by its absolute path: {path}",
            )
    named = entry.variables.get("NSM_SOCKET")
    if named and named != host.socket:
        yield (
            f"leads to another supervisor, at NSM_SOCKET={named}; here it is {host.socket}",
            "Remove NSM_SOCKET from the entry, or set it here, too.",
        )
    project = entry.variables.get("PROJECT_DIR")
    if project and os.path.isabs(project) and not os.path.isdir(host.real(project)):
        yield (
            f"its project {project} is not there",
            "Correct PROJECT_DIR of the entry, or remove it.",
        )


def _entry(client: str, file: str, name: str, server: object) -> ServerEntry | None:
    """Read an entry that starts a program; None if it is none."""
    if not isinstance(server, dict):
        return None
    table = cast("Table", server)
    command: object = table.get("command")
    if isinstance(command, dict):  # older Zed: {"command": {"path", "args", "env"}}
        table = cast("Table", command)
        command = table.get("path")
    words = [command] if isinstance(command, str) else _texts(command)
    words += _texts(table.get("args"))
    if not words or not words[0]:
        return None
    variables: object = table.get("env") or table.get("environment")
    told = cast("Table", variables) if isinstance(variables, dict) else {}
    return ServerEntry(
        client=client,
        file=file,
        name=name,
        command=tuple(words),
        variables={key: value for key, value in told.items() if isinstance(value, str)},
    )


def _texts(value: object) -> list[str]:
    if not isinstance(value, list):
        return []
    return [each for each in cast("list[object]", value) if isinstance(each, str)]


def _path(path: str, host: Host) -> str:
    if path.startswith("~/.codex/") and (codex := host.variables.get("CODEX_HOME")):
        return os.path.join(codex, os.path.basename(path))
    if path == "~/.claude.json" and (claude := host.variables.get("CLAUDE_CONFIG_DIR")):
        return os.path.join(claude, ".claude.json")
    if path.startswith("~/.config/") and (config := host.variables.get("XDG_CONFIG_HOME")):
        return os.path.join(config, path.removeprefix("~/.config/"))
    base = host.home if path.startswith("~/") else host.cwd
    return os.path.join(base, path[2:])


def _parsed(path: str, text: str) -> object:
    if path.endswith(".toml"):
        return tomllib.loads(text)
    try:
        return json.loads(text)
    except ValueError:  # with comments, or commas before closing brackets, as editors write it
        return value_of(text)
