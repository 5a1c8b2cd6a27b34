"""nsm in a box: its programs, and its entry among the MCP servers of an agent."""

from __future__ import annotations

import json
import os
import stat
import tomllib
from pathlib import Path

import pytest

from box.world import World
from nsm import __version__
from nsmbox import profiles
from nsmbox.host import mcp, nsm_itself
from nsmbox.host.nsm_itself import MCP_PROGRAM


def test_the_programs_have_the_same_place_whatever_the_host_has() -> None:
    here = nsm_itself.NsmPaths(
        python="/home/u/.pyenv/versions/3.12.1/bin/python3.12",
        library=("/home/u/.pyenv/versions/3.12.1/lib/python3.12",),
        packages=(("nsm", "/home/u/nsm/clients/nsm"), ("cbor2", "/home/u/v/cbor2")),
    )
    there = nsm_itself.NsmPaths(
        python="/usr/bin/python3.11",
        library=("/usr/lib/python3.11",),
        packages=(("nsm", "/usr/lib/python3/dist-packages/nsm"), ("cbor2", "/opt/cbor2")),
    )
    assert [(m.kind, m.target, m.source) for m in nsm_itself.mounts(here)] == [
        ("ro-bind", here.python, here.python),
        ("ro-bind", here.library[0], here.library[0]),
        ("ro-bind", "/run/nsm/lib/nsm", "/home/u/nsm/clients/nsm"),
        ("ro-bind", "/run/nsm/lib/cbor2", "/home/u/v/cbor2"),
        ("symlink", "/run/nsm/python", here.python),
        ("ro-file", "/run/nsm/bin/nsm", ""),
        ("ro-file", "/run/nsm/bin/nsm-mcp", ""),
    ]
    assert [(m.kind, m.target) for m in nsm_itself.mounts(there)] == [
        (m.kind, m.target) for m in nsm_itself.mounts(here)[2:]
    ]
    assert nsm_itself.mounts(there)[-1] == nsm_itself.mounts(here)[-1]
    assert nsm_itself.mounts(there, shown=())[0].target == "/usr/bin/python3.11"


@pytest.mark.slow
@pytest.mark.jail
def test_a_box_can_be_of_a_program_of_nsms_own(shared_world: World) -> None:
    """The caller has the same program on PATH, made for the host."""
    for name in ("nsm", "nsm-mcp"):
        done = shared_world.box(name, "--version")
        assert (done.returncode, done.stdout.split()[-1:]) == (0, [__version__]), done.stderr
    done = shared_world.box("sh", "-c", "command -v nsm-mcp; nsm --version")
    assert done.stdout.split()[0] == nsm_itself.MCP_PROGRAM


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


HOSTS = {"command": "/home/u/nsm/.venv/bin/nsm-mcp", "env": {"PROJECT_MODE": "copy"}}
OTHERS = {"other": {"type": "http", "url": "https://mcp.example/"}}
FILES: dict[str, tuple[dict[str, object], dict[str, object] | None]] = {
    "other entries stay": (
        {"userID": "\u00fc", "mcpServers": OTHERS, "projects": {"/p": {"x": [1, None]}}},
        {**OTHERS, "nsm": OURS},
    ),
    "an entry of the host's names the program in the box": (
        {"mcpServers": {"nsm": HOSTS}},
        {"nsm": OURS | {"env": {"PROJECT_MODE": "copy"}}},
    ),
    "its own entry is left as it is": (
        {"mcpServers": {"nsm": {**OURS, "env": {"NSM_SCOPE": "mine"}}}},
        None,
    ),
}
"""By what holds: a file, and the servers in it afterwards; None where it is not written."""


@pytest.mark.parametrize("name", FILES)
def test_a_file_keeps_what_is_not_nsms(name: str, tmp_path: Path) -> None:
    earlier, servers = FILES[name]
    file = tmp_path / ".claude.json"
    file.write_text(json.dumps(earlier))
    file.chmod(0o640)
    before = file.stat()
    assert mcp.keep_entry("claude", str(tmp_path)) == ""
    if servers is None:
        assert (file.stat().st_ino, file.stat().st_mtime_ns) == (before.st_ino, before.st_mtime_ns)
    else:
        assert settings_in(tmp_path) == earlier | {"mcpServers": servers}
    assert stat.S_IMODE(file.stat().st_mode) == 0o640
    assert os.listdir(tmp_path) == [".claude.json"]


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


@pytest.mark.parametrize("name", profiles.names())
def test_a_profile_holds_together(name: str) -> None:
    it = profiles.load(name)
    assert it.about
    assert bool(it.program) == bool(it.install), "how to get what may be missing"
    assert it.mcp in ("", *mcp.KINDS)
    assert not it.arguments or it.program
    for state in it.state:
        # A box's own: what the host's agent keeps is never shown.
        assert state.host.split("/")[0] != state.box.split("/")[0]
        assert not state.host.startswith(("/", "..")), state
    assert len({state.host for state in it.state}) == len(it.state)
    if it.mcp in ("claude", "gemini"):  # the first directory has the file
        assert it.state


def test_each_agent_that_can_be_told_has_a_profile() -> None:
    assert {profiles.load(name).mcp for name in profiles.names()} - {""} == set(mcp.KINDS)
