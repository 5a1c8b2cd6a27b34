"""nsm's entry among the MCP servers of an agent in a box."""

from __future__ import annotations

import json
import os
import stat
import tomllib
from pathlib import Path

import pytest

from nsmbox.host import mcp
from nsmbox.host.nsm_itself import MCP_PROGRAM

OURS: dict[str, object] = {"type": "stdio", "command": MCP_PROGRAM, "args": [], "env": {}}


def settings_in(directory: Path) -> dict[str, object]:
    settings: dict[str, object] = json.loads((directory / ".claude.json").read_bytes())
    return settings


def test_a_first_box_is_told_of_nsm(tmp_path: Path) -> None:
    directory = tmp_path / "claudebox"
    assert mcp.keep_entry("claude", str(directory)) == ""
    assert settings_in(directory) == {"mcpServers": {"nsm": OURS}}
    assert stat.S_IMODE(directory.stat().st_mode) == 0o700
    assert stat.S_IMODE((directory / ".claude.json").stat().st_mode) == 0o600
    assert os.listdir(directory) == [".claude.json"]


def test_other_entries_of_the_file_stay(tmp_path: Path) -> None:
    other = {"type": "http", "url": "https://mcp.example/"}
    earlier = {"userID": "ü", "mcpServers": {"other": other}, "projects": {"/p": {"x": [1, None]}}}
    file = tmp_path / ".claude.json"
    file.write_text(json.dumps(earlier))
    file.chmod(0o640)
    assert mcp.keep_entry("claude", str(tmp_path)) == ""
    assert settings_in(tmp_path) == earlier | {"mcpServers": {"other": other, "nsm": OURS}}
    assert stat.S_IMODE(file.stat().st_mode) == 0o640
    assert os.listdir(tmp_path) == [".claude.json"]


def test_a_file_that_has_the_entry_is_not_written(tmp_path: Path) -> None:
    mcp.keep_entry("claude", str(tmp_path))
    file = tmp_path / ".claude.json"
    entry = {**OURS, "env": {"NSM_SCOPE": "mine"}}
    file.write_text(json.dumps({"mcpServers": {"nsm": entry}}))
    before = file.stat()
    assert mcp.keep_entry("claude", str(tmp_path)) == ""
    assert (file.stat().st_ino, file.stat().st_mtime_ns) == (before.st_ino, before.st_mtime_ns)


def test_an_entry_of_the_hosts_is_made_to_name_the_program_in_the_box(tmp_path: Path) -> None:
    entry = {"command": "/home/u/nsm/.venv/bin/nsm-mcp", "env": {"PROJECT_MODE": "copy"}}
    (tmp_path / ".claude.json").write_text(json.dumps({"mcpServers": {"nsm": entry}}))
    assert mcp.keep_entry("claude", str(tmp_path)) == ""
    assert settings_in(tmp_path)["mcpServers"] == {"nsm": OURS | {"env": {"PROJECT_MODE": "copy"}}}


LEFT_ALONE = [
    (b'{"mcpServers": ', "is not JSON"),
    (b"[1]", "is not a JSON object"),
    (b'{"mcpServers": []}', "no object as its mcpServers"),
    (b"[" * 100_000, "is not JSON"),
    (b'{"a": ' * 400 + b"1" + b"}" * 400, ""),
    (b"\xff\xfe\x00", "is not JSON"),
    (b'{"mcpServers": {"nsm": {"command": "/opt/other"}}}', "is another than nsm's"),
    (b'{"mcpServers": {"nsm": {"type": "http", "url": "https://x/"}}}', "is another than nsm's"),
]


@pytest.mark.parametrize(("content", "told"), LEFT_ALONE, ids=range(len(LEFT_ALONE)))
def test_a_file_that_is_not_as_expected_is_told_and_left_alone(
    content: bytes, told: str, tmp_path: Path
) -> None:
    file = tmp_path / ".claude.json"
    file.write_bytes(content)
    note = mcp.keep_entry("claude", str(tmp_path))
    if told:
        assert str(file) in note
        assert told in note
        assert file.read_bytes() == content
    else:  # deep, and JSON all the same
        assert note == "" or "nested too deeply" in note
    assert os.listdir(tmp_path) == [".claude.json"]


def test_links_left_by_a_box_lead_nowhere(tmp_path: Path) -> None:
    """A link would have a file of the host's changed, a pipe would be waited for without end."""
    victim = tmp_path / "settings.json"
    victim.write_text("{}")
    left: list[Path] = []
    for name in ("link", "pipe", "directory"):
        (tmp_path / name).mkdir()
        left.append(tmp_path / name / ".claude.json")
    left[0].symlink_to(victim)
    os.mkfifo(left[1])
    left[2].mkdir()
    for place in left:
        assert "is not a regular file" in mcp.keep_entry("claude", str(place.parent)), place
        assert os.listdir(place.parent) == [".claude.json"]
    assert victim.read_text() == "{}"


def test_a_file_without_end_is_not_read(tmp_path: Path) -> None:
    file = tmp_path / ".claude.json"
    with file.open("wb") as sparse:
        sparse.truncate(mcp.MAX_FILE_BYTES + 1)
    assert "more than 16 MiB" in mcp.keep_entry("claude", str(tmp_path))


def test_a_directory_that_cannot_be_made_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    assert "Not a directory" in mcp.keep_entry("claude", str(tmp_path / "file" / "claudebox"))


def test_entries_that_another_box_writes_are_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / ".claude.json"
    file.write_text('{"numStartups": 1}')
    real = mcp.with_entry

    def slow(content: bytes, config_format: mcp.McpConfigFormat) -> bytes | str | None:
        if b'"numStartups": 1}' in content:
            other = tmp_path / "other"
            other.write_text('{"numStartups": 2, "more": true}')
            other.replace(file)
        return real(content, config_format)

    monkeypatch.setattr(mcp, "with_entry", slow)
    assert mcp.keep_entry("claude", str(tmp_path)) == ""
    assert settings_in(tmp_path) == {"numStartups": 2, "more": True, "mcpServers": {"nsm": OURS}}


def test_codex_is_told_by_arguments_that_are_toml() -> None:
    arguments = mcp.arguments("codex")
    assert arguments[::2] == ("-c", "-c")
    given = tomllib.loads("\n".join(arguments[1::2]))
    assert given["mcp_servers"]["nsm"] == {
        "command": MCP_PROGRAM,
        "env": {"NSM_AUTOSTART": "0", "NSM_SOCKET": "/run/nsm/box/control.sock"},
    }


def test_gemini_is_told_in_its_settings(tmp_path: Path) -> None:
    assert mcp.keep_entry("gemini", str(tmp_path)) == ""
    settings = json.loads((tmp_path / "settings.json").read_bytes())
    assert settings == {"mcpServers": {"nsm": {"command": MCP_PROGRAM, "args": []}}}


def test_opencode_is_told_in_a_variable() -> None:
    told = mcp.told_by_variables("opencode")
    assert json.loads(told["OPENCODE_CONFIG_CONTENT"]) == {
        "mcp": {"nsm": {"type": "local", "command": [MCP_PROGRAM]}},
        "permission": "allow",
        "autoupdate": False,
        "instructions": ["/run/nsm/rules.md"],
    }


def test_each_agent_is_told_in_one_way(tmp_path: Path) -> None:
    for kind in (*mcp.KINDS, ""):
        directory = tmp_path / (kind or "none")
        mcp.keep_entry(kind, str(directory))
        ways = (directory.exists(), bool(mcp.arguments(kind)), bool(mcp.told_by_variables(kind)))
        assert sum(ways) == (kind != ""), kind
