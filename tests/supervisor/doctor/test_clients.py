"""Entries of MCP clients, in each client's own form, and whether they lead here."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from doctor_world import World
from nsmd.doctor.clients import PLACES, check_clients

if TYPE_CHECKING:
    from nsm.checks import HostCheck

OURS = "/opt/nsm/bin/nsm-mcp"
GOOD: dict[str, Any] = {"command": OURS, "args": []}


def one(world: World) -> HostCheck:
    (row,) = check_clients(world.host)
    return row


@pytest.mark.parametrize(
    ("client", "path", "text"),
    [
        (
            "Claude Code",
            "/home/me/.claude.json",
            {"projects": {"/home/me/work": {"mcpServers": {"py": GOOD}}, "/x": None}},
        ),
        ("Claude Code", "/home/me/work/.mcp.json", {"mcpServers": {"py": GOOD}}),
        (
            "Claude Desktop",
            "/home/me/.config/Claude/claude_desktop_config.json",
            {"mcpServers": {"py": GOOD}},
        ),
        ("Cursor", "/home/me/.cursor/mcp.json", {"mcpServers": {"py": GOOD}}),
        ("Codex", "/home/me/.codex/config.toml", f'[mcp_servers.py]\ncommand = "{OURS}"\n'),
        ("Gemini", "/home/me/work/.gemini/settings.json", {"mcpServers": {"py": GOOD}}),
        (
            "opencode",
            "/home/me/.config/opencode/opencode.json",
            {"mcp": {"py": {"type": "local", "command": [OURS]}}},
        ),
        ("VS Code", "/home/me/.config/Code/User/settings.json", {"mcp": {"servers": {"py": GOOD}}}),
        ("Windsurf", "/home/me/.codeium/windsurf/mcp_config.json", {"mcpServers": {"py": GOOD}}),
        (
            "Zed",
            "/home/me/.config/zed/settings.json",
            f'// mine\n{{"context_servers": {{"py": {{"command": "{OURS}",}},}},}}',
        ),
    ],
)
def test_each_client_s_form(world: World, client: str, path: str, text: Any) -> None:
    world.file(path, text if isinstance(text, str) else json.dumps(text))
    row = one(world)
    assert (row.name, row.status) == (f"client {client}", "ok")
    assert row.detail.startswith("py")
    assert f"in {path} starts {OURS}" in row.detail


def test_homes_that_variables_name(world: World) -> None:
    world.file("/etc/codex/config.toml", f'[mcp_servers.py]\ncommand = "{OURS}"\n')
    world.file("/etc/xdg/zed/settings.json", json.dumps({"context_servers": {"py": GOOD}}))
    world.file("/etc/claude/.claude.json", json.dumps({"mcpServers": {"py": GOOD}}))
    variables = {
        "CLAUDE_CONFIG_DIR": "/etc/claude",
        "CODEX_HOME": "/etc/codex",
        "XDG_CONFIG_HOME": "/etc/xdg",
    }
    rows = list(check_clients(world.but(variables=variables)))
    assert [row.name for row in rows] == ["client Claude Code", "client Codex", "client Zed"]


def test_the_home_directory_as_the_project_shows_no_file_twice(world: World) -> None:
    world.file("/home/me/.cursor/mcp.json", json.dumps({"mcpServers": {"py": GOOD}}))
    (row,) = check_clients(world.but(cwd="/home/me"))
    assert row.name == "client Cursor"


@pytest.mark.parametrize(
    ("server", "problem", "fix"),
    [
        ({"command": "nsm-mcp"}, "nsm-mcp is not on PATH", OURS),
        ({"command": "./nsm-mcp"}, "relative", OURS),
        ({"command": "/gone/nsm-mcp"}, "not there, or no program", OURS),
        ({"command": "/opt/old/nsm-mcp"}, "of another installation", OURS),
        ({**GOOD, "env": {"NSM_SOCKET": "/run/x.sock"}}, "another supervisor", "NSM_SOCKET"),
        ({**GOOD, "env": {"PROJECT_DIR": "/gone"}}, "project /gone is not there", "PROJECT_DIR"),
    ],
)
def test_entries_that_lead_elsewhere(
    world: World, server: dict[str, Any], problem: str, fix: str
) -> None:
    world.program("/opt/old/nsm-mcp")
    world.file("/home/me/.cursor/mcp.json", json.dumps({"mcpServers": {"py": server}}))
    row = one(world)
    assert row.status == "warn"
    assert problem in row.detail
    assert fix in row.fix


@pytest.mark.parametrize(
    "server",
    [
        {"command": OURS, "env": {"NSM_SOCKET": "/run/user/1000/nsm/control.sock", "N": 1}},
        {"command": OURS, "env": {"PROJECT_DIR": "/home/me/work"}},
        {"command": OURS, "env": {"PROJECT_DIR": "${workspaceFolder}"}},
        {"command": "/usr/bin/uvx", "args": ["--from", "nsm", "nsm-mcp"]},
        {"command": "/usr/bin/uvx", "args": ["-m", "nsm.shim"]},
    ],
)
def test_entries_that_lead_here(world: World, server: dict[str, Any]) -> None:
    world.program("/usr/bin/uvx")
    world.file("/home/me/.cursor/mcp.json", json.dumps({"mcpServers": {"py": server}}))
    assert one(world).status == "ok"


@pytest.mark.parametrize("text", ["{", "[]", "null", '{"mcpServers": []}', "\0", "[" * 100_000])
def test_files_that_are_not_understood_are_passed_over(world: World, text: str) -> None:
    for place in PLACES:
        world.file(place.path.replace("~", "/home/me").replace("./", "/home/me/work/"), text)
    assert one(world).name == "clients"


def test_a_broken_file_that_names_us(world: World) -> None:
    world.file("/home/me/.cursor/mcp.json", f'{{"mcpServers": {{"py": {{"command": "{OURS}"')
    row = one(world)
    assert (row.status, "is not valid" in row.detail) == ("warn", True)


def test_secrets_are_not_shown(world: World) -> None:
    server = {"command": "/gone/nsm-mcp", "env": {"TOKEN": "s3cret", "NSM_SOCKET": "/x"}}
    world.file("/home/me/.cursor/mcp.json", json.dumps({"mcpServers": {"py": server}}))
    row = one(world)
    assert "s3cret" not in row.detail + row.fix
