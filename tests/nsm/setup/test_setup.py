"""`nsm setup`, on files as people have them."""

from __future__ import annotations

import errno
import json
import os
import re
import subprocess
import sys
import tomllib
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from cli_bench import in_this_process
from nsm.cli import terminal
from nsm.setup import plan, record
from nsm.setup.agents import TITLES, agent
from nsmd.mcp import run_tool

if TYPE_CHECKING:
    from collections.abc import Iterator

    from cli_bench import Nsm

PROGRAM = f"{Path(sys.executable).parent}/nsm-mcp"

CLAUDE = """\
{
  "numStartups": 12,
  "mcpServers": {
    "other": {"command": "npx", "args": ["-y", "x"], "env": {"API_KEY": "SECRET"}}
  },
  "projects": {"/home/me/words": {"allowedTools": []}}
}"""
CLAUDE_RULES = '{\n    "permissions": {\n        "deny": [ "Read(.env)" ]\n    }\n}\n'
CODEX = """\
# my settings
model = "gpt-6"   # the big one

[mcp_servers.other]
command = "npx"
[tui]
theme = '''
[mcp_servers.nsm.fake]
'''"""
ZED = """\
// Zed settings
{
\t"theme": "One Dark", // dark
\t"agent": {
\t\t"tool_permissions": {"default": "confirm"},
\t},
\t/* servers */
\t"context_servers": {
\t\t"other": { "command": "x", "args": [] },
\t},
}
"""
OPENCODE = '{"$schema":"https://opencode.ai/config.json","permission":{"*":"ask"}}\n'
VSCODE = '{\r\n\t"servers": {},\r\n\t"inputs": []\r\n}\r\n'

PEOPLES = {
    "claude": {".claude.json": CLAUDE, ".claude/settings.json": CLAUDE_RULES},
    "codex": {".codex/config.toml": CODEX},
    "cursor": {".cursor/mcp.json": "{}", ".cursor/permissions.json": '{"mcpAllowlist": ["a:b"]}'},
    "zed": {".config/zed/settings.json": ZED},
    "gemini": {".gemini/settings.json": '{ "theme": "GitHub" }'},
    "opencode": {".config/opencode/opencode.jsonc": OPENCODE},
    "vscode": {".config/Code/User/mcp.json": VSCODE},
}


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("CLAUDE_CONFIG_DIR", "CODEX_HOME", "XDG_CONFIG_HOME", "XDG_STATE_HOME"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path


@pytest.fixture
def setup(capfdbinary: pytest.CaptureFixture[bytes]) -> Nsm:
    """Run `nsm setup` and return what it said."""
    return partial(in_this_process, capfdbinary, "setup")


def write(home: Path, contents: dict[str, str]) -> None:
    for name, text in contents.items():
        (home / name).parent.mkdir(parents=True, exist_ok=True)
        (home / name).write_bytes(text.encode())


def everything(home: Path) -> dict[str, bytes]:
    """Contents of all files but nsm's own state."""
    found = (path for path in home.rglob("*") if path.is_file())
    return {
        str(path.relative_to(home)): path.read_bytes()
        for path in found
        if not path.is_relative_to(home / ".local")
    }


@pytest.mark.parametrize("client", TITLES)
def test_undo_brings_back_every_byte(client: str, home: Path, setup: Nsm) -> None:
    write(home, PEOPLES[client])
    before = everything(home)
    said = setup(client, "--yes")
    assert said.code == 0
    assert said.out.endswith(
        f"{TITLES[client]} is set up. Start it again, or a new session in it.\n"
    )
    assert "SECRET" not in said.out
    assert not (home / ".local/state/nsm").stat().st_mode & 0o077  # `nsm doctor` checks that
    after = everything(home)
    assert set(before) < set(after)
    for name, text in PEOPLES[client].items():
        # Nothing but commas is lost or moved.
        rest = iter(re.sub(r"[\s,]", "", after[name].decode()))
        assert all(letter in rest for letter in re.sub(r"[\s,]", "", text))
    again = setup(client, "--yes")
    assert again.out == f"{TITLES[client]} is set up already: nothing to change.\n"
    assert everything(home) == after
    assert setup(client, "--undo", "--yes").code == 0
    assert everything(home) == before
    nothing = setup(client, "--undo", "--yes")
    assert nothing.out == f"{TITLES[client]} has nothing of nsm's: nothing to change.\n"


@pytest.mark.parametrize("client", TITLES)
def test_without_its_record_the_user_is_told_what_to_take_out(
    client: str, home: Path, setup: Nsm
) -> None:
    write(home, PEOPLES[client])
    assert setup(client, "--yes").code == 0
    after = everything(home)
    (home / f".local/state/nsm/setup/{client}.json").unlink()
    said = setup(client, "--undo", "--yes")
    assert (said.code, "has nothing of nsm's any more" in said.out) == (1, False)
    for wanted in agent(client, PROGRAM, {}).wanted:
        if wanted.kind == "file":  # it holds nsm's text and nothing else
            assert not Path(wanted.path).exists()
        else:
            assert f"{wanted.path} is in no record of nsm's, and was left: take out" in said.err
            assert ".".join(wanted.keys) in said.err
    for name in PEOPLES[client]:
        assert everything(home)[name] == after[name]
    write(home, PEOPLES[client])  # the user has
    assert "nothing to change" in setup(client, "--undo", "--yes").out


def test_entries_of_others_stay_without_a_record(home: Path, setup: Nsm) -> None:
    text = '{"mcpServers": {"nsm": {"command": "/opt/other"}}}'
    write(home, {".cursor/mcp.json": text, ".agents/skills/nsm/SKILL.md": "mine"})
    said = setup("cursor", "--undo", "--yes")
    assert (said.code, "SKILL.md stays" in said.err) == (0, True)
    assert (home / ".cursor/mcp.json").read_text() == text


def test_a_read_only_file_is_refused(home: Path, setup: Nsm) -> None:
    write(home, PEOPLES["codex"])
    file = home / ".codex/config.toml"
    file.chmod(0o444)
    said = setup("codex", "--yes")
    assert (said.code, f"{file} is read-only" in said.err) == (1, True)
    assert everything(home) == {".codex/config.toml": CODEX.encode()}


def test_without_a_name_those_that_are_installed(
    home: Path, monkeypatch: pytest.MonkeyPatch, setup: Nsm
) -> None:
    monkeypatch.setenv("PATH", str(home / "bin"))
    said = setup("--yes")
    assert (said.code, "none of these was found here: claude" in said.err) == (1, True)
    write(home, {"bin/code": "#!/bin/sh\n", ".codex/config.toml": CODEX, ".claude.json": "{}"})
    (home / "bin/code").chmod(0o755)
    said = setup("--yes")
    assert (said.code, said.err.partition("\n")[0]) == (0, "nsm: found Claude Code, Codex, VS Code")
    assert (home / ".config/Code/User/mcp.json").exists()
    assert not (home / ".cursor").exists()
    assert setup("--undo", "--yes").code == 0
    assert set(everything(home)) == {"bin/code", ".codex/config.toml", ".claude.json"}


def test_each_client_gets_its_entry(home: Path, setup: Nsm) -> None:
    for client in TITLES:
        assert setup(client, "--yes").code == 0
    texts = {name: text.decode() for name, text in everything(home).items()}

    def table(name: str) -> dict[str, Any]:
        value: dict[str, Any] = json.loads(texts[name])
        return value

    assert table(".claude.json")["mcpServers"]["nsm"]["command"] == PROGRAM
    assert table(".claude/settings.json") == {"permissions": {"allow": ["mcp__nsm__run"]}}
    codex = tomllib.loads(texts[".codex/config.toml"])["mcp_servers"]["nsm"]
    assert codex == {"command": PROGRAM, "tools": {"run": {"approval_mode": "approve"}}}
    assert table(".cursor/mcp.json") == {"mcpServers": {"nsm": {"command": PROGRAM}}}
    assert table(".cursor/permissions.json") == {"mcpAllowlist": ["nsm:run"]}
    zed = table(".config/zed/settings.json")
    assert zed["context_servers"]["nsm"]["command"] == PROGRAM
    assert zed["agent"]["tool_permissions"]["tools"] == {"mcp:nsm:run": {"default": "allow"}}
    assert table(".gemini/settings.json")["mcpServers"]["nsm"]["command"] == PROGRAM
    rule = tomllib.loads(texts[".gemini/policies/nsm.toml"])["rule"][0]
    assert (rule["mcpName"], rule["toolName"], rule["decision"]) == ("nsm", "run", "allow")
    opencode = table(".config/opencode/opencode.json")
    assert opencode["mcp"]["nsm"] == {"type": "local", "command": [PROGRAM]}
    assert opencode["permission"] == {"nsm_run": "allow"}
    assert table(".config/Code/User/mcp.json")["servers"]["nsm"]["command"] == PROGRAM
    assert texts[".claude/skills/nsm/SKILL.md"] == texts[".agents/skills/nsm/SKILL.md"]


def test_a_file_that_several_clients_read_stays_until_the_last_is_undone(
    home: Path, setup: Nsm
) -> None:
    skill = home / ".agents/skills/nsm/SKILL.md"
    for client in ("codex", "zed"):
        setup(client, "--yes")
    said = setup("codex", "--undo", "--yes")
    assert f"{skill} stays for Zed" in said.err
    assert skill.exists()
    setup("zed", "--undo", "--yes")
    assert not (home / ".agents").exists()


@pytest.mark.parametrize(
    ("client", "name", "old", "new"),
    [
        ("claude", ".claude.json", '"numStartups": 12', '"numStartups": 13, "added": [1]'),
        ("codex", ".codex/config.toml", "theme = ", "size = 3\ntheme = "),
        ("zed", ".config/zed/settings.json", '"One Dark"', '"Two Dark"'),
    ],
)
def test_later_changes_of_the_user_stay(
    client: str, name: str, old: str, new: str, home: Path, setup: Nsm
) -> None:
    write(home, PEOPLES[client])
    setup(client, "--yes")
    text = (home / name).read_text()
    (home / name).write_text(text.replace(old, new))
    assert setup(client, "--undo", "--yes").code == 0
    assert (home / name).read_text() == PEOPLES[client][name].replace(old, new)


@pytest.mark.parametrize(
    ("client", "old", "new"),
    [
        ("claude", '"env": {}', '"env": {"PROJECT_DIR": "/x"}'),
        ("codex", 'nsm-mcp"\n', 'nsm-mcp"\nenv = {A = "1"}\n'),
        ("codex", '"approve"\n', '"approve"\noutput = "short"\n'),
    ],
)
def test_an_entry_that_the_user_has_changed_stays(
    client: str, old: str, new: str, home: Path, setup: Nsm
) -> None:
    write(home, PEOPLES[client])
    setup(client, "--yes")
    wanted = agent(client, PROGRAM, {}).wanted[0]
    text = Path(wanted.path).read_text()
    assert old in text
    Path(wanted.path).write_text(text.replace(old, new))
    said = setup(client, "--undo", "--yes")
    keys = ".".join(wanted.keys)
    assert f"{wanted.path} has changed since, and was left: take out {keys}" in said.err
    assert said.code == 1
    assert Path(wanted.path).read_text() == text.replace(old, new)
    again = setup(client, "--undo", "--yes")
    assert (again.code, f"take out {keys}" in again.err) == (1, True)
    write(home, PEOPLES[client])  # the user has
    assert "nothing to change" in setup(client, "--undo", "--yes").out
    assert not list((home / ".local/state/nsm/setup").glob("*.json"))


def test_a_file_that_its_program_has_written_anew(home: Path, setup: Nsm) -> None:
    """Claude Code writes its file whole, in its own form, which nsm's entry has."""
    file = home / ".claude.json"
    file.write_text(json.dumps(json.loads(CLAUDE), indent=2))
    setup("claude", "--yes")
    value = json.loads(file.read_text())
    value["mcpServers"]["third"] = {"command": "x"}
    file.write_text(json.dumps({"new": 1} | value, indent=2))
    assert setup("claude", "--undo", "--yes").code == 0
    del value["mcpServers"]["nsm"]
    assert file.read_text() == json.dumps({"new": 1} | value, indent=2)


def test_an_entry_of_an_older_installation(home: Path, setup: Nsm) -> None:
    text = '{"servers": {"nsm": {"command": "/old/nsm-mcp", "env": {"PROJECT_DIR": "/x"}}}}'
    write(home, {".config/Code/User/mcp.json": text})
    said = setup("vscode", "--yes")
    assert "the entry started /old/nsm-mcp" in said.err
    now = (home / ".config/Code/User/mcp.json").read_text()
    assert now == text.replace("/old/nsm-mcp", PROGRAM)
    setup("vscode", "--undo", "--yes")
    assert (home / ".config/Code/User/mcp.json").read_text() == text
    toml = '[mcp_servers.nsm] # mine\nenv = {A = "1"}\ncommand = "/old/nsm-mcp"\n\n[tui]\na = 1\n'
    write(home, {".codex/config.toml": toml})
    setup("codex", "--yes")
    now = (home / ".codex/config.toml").read_text()
    assert now.startswith(toml.replace("/old/nsm-mcp", PROGRAM))
    setup("codex", "--undo", "--yes")
    assert (home / ".codex/config.toml").read_text() == toml


def test_an_upgrade_brings_the_new_skill_and_keeps_one_that_was_changed(
    home: Path, setup: Nsm
) -> None:
    skill = home / ".agents/skills/nsm/SKILL.md"
    older = agent("vscode", PROGRAM, {})
    wanted = [*older.wanted[:-1]]
    wanted.append(type(older.wanted[-1])(path=str(skill), kind="file", value="older\n"))
    older = type(older)(name="vscode", title="VS Code", wanted=tuple(wanted))
    with record.locked(lambda: None):
        plan.apply(plan.plan_setup(older))
    assert skill.read_text() == "older\n"
    assert setup("vscode", "--yes").code == 0
    assert skill.read_text().startswith("---\nname: nsm\n")
    skill.write_text("mine\n")
    assert f"{skill} stays: somebody has changed it" in setup("vscode", "--yes").err
    assert f"{skill} stays: somebody has changed it" in setup("vscode", "--undo", "-y").err
    assert skill.read_text() == "mine\n"


@pytest.mark.parametrize(
    ("client", "name", "text", "why"),
    [
        ("claude", ".claude.json", '{"a": 1', "is not valid, and was left as it is: line 1"),
        ("claude", ".claude/settings.json", "{a}", "is not valid"),
        ("claude", ".claude.json", "[]", "it is not an object"),
        ("claude", ".claude.json", '{"mcpServers": []}', "its mcpServers is not an object"),
        ("claude", ".claude.json", '{"mcpServers": {"nsm": {"url": "x"}}}', "no program"),
        ("cursor", ".cursor/mcp.json", '{"mcpServers": {"nsm": {"command": "x"}}}', "starts x"),
        ("codex", ".codex/config.toml", "a = ", "is not valid"),
        ("codex", ".codex/config.toml", "mcp_servers = {}", "a way that nsm does not know"),
        ("codex", ".codex/config.toml", "\ufeff\x00", "is not valid"),
    ],
)
def test_a_file_that_is_broken_or_strange_is_refused_and_nothing_written(
    client: str, name: str, text: str, why: str, home: Path, setup: Nsm
) -> None:
    write(home, {name: text})
    before = everything(home)
    said = setup(client, "--yes")
    assert said.code == 1
    assert why in said.err
    assert "othing was changed" in said.err or "by hand" in said.err
    assert everything(home) == before


def test_bytes_and_directories_in_a_files_place(home: Path, setup: Nsm) -> None:
    (home / ".claude.json").write_bytes(b'{"a": "\xff"}')
    assert "is not valid" in setup("claude", "--yes").err
    (home / ".cursor/mcp.json").mkdir(parents=True)
    assert setup("cursor", "--yes").code == 1
    (home / ".gemini").mkdir()
    os.mkfifo(home / ".gemini/settings.json")
    assert "is not a regular file" in setup("gemini", "--yes").err


def test_rules_that_the_user_has_set_stay(home: Path, setup: Nsm) -> None:
    rule = '{"agent": {"tool_permissions": {"tools": {"mcp:nsm:run": {"default": "deny"}}}}}'
    write(home, {".config/zed/settings.json": rule})
    said = setup("zed", "--yes")
    assert (said.code, "stays 'deny'" in said.err) == (0, True)
    write(home, {".config/opencode/opencode.json": '{"permission": "ask"}'})
    said = setup("opencode", "--yes")
    assert (said.code, "`run` is not allowed there in advance" in said.err) == (0, True)
    told = json.loads((home / ".config/opencode/opencode.json").read_text())
    assert told["permission"] == "ask"


def test_links_and_modes_stay(home: Path, setup: Nsm) -> None:
    write(home, {"dotfiles/codex.toml": CODEX})
    (home / ".codex").mkdir()
    (home / ".codex/config.toml").symlink_to("../dotfiles/codex.toml")
    (home / "dotfiles/codex.toml").chmod(0o640)
    for arguments in (["--yes"], ["--undo", "--yes"]):
        assert setup("codex", *arguments).code == 0
        assert (home / ".codex/config.toml").is_symlink()
        assert (home / "dotfiles/codex.toml").stat().st_mode & 0o777 == 0o640
        assert [path.name for path in (home / "dotfiles").iterdir()] == ["codex.toml"]
    assert (home / "dotfiles/codex.toml").read_text() == CODEX


def test_setup_asks_before_it_writes(
    home: Path, setup: Nsm, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no(question: str) -> bool:
        return question != "Write this?"

    def yes(question: str) -> bool:
        return question == "Write this?"

    monkeypatch.setattr(terminal, "may_ask", lambda: False)
    said = setup("zed")
    assert (said.code, "pass --yes" in said.err) == (2, True)
    assert '+  "context_servers": {' in said.out
    monkeypatch.setattr(terminal, "may_ask", lambda: True)
    monkeypatch.setattr(terminal, "agreed", no)
    assert setup("zed").code == 1
    assert everything(home) == {}
    monkeypatch.setattr(terminal, "agreed", yes)
    assert setup("zed").code == 0
    assert ".config/zed/settings.json" in everything(home)


def test_a_file_that_changes_while_the_question_waits(
    home: Path, setup: Nsm, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(home, PEOPLES["claude"])

    def agreed(_: str) -> bool:
        (home / ".claude/settings.json").write_text("{}")
        return True

    monkeypatch.setattr(terminal, "may_ask", lambda: True)
    monkeypatch.setattr(terminal, "agreed", agreed)
    said = setup("claude")
    assert (said.code, "has changed meanwhile" in said.err) == (1, True)
    assert (home / ".claude.json").read_text() == CLAUDE
    assert not (home / ".claude/skills").exists()


def test_a_full_disk(home: Path, setup: Nsm, monkeypatch: pytest.MonkeyPatch) -> None:
    """Take back what was written already, and record nothing."""
    write(home, PEOPLES["claude"])
    before = everything(home)
    fsync = os.fsync
    calls = iter(range(100))

    def full(fd: int) -> None:
        if next(calls) == 3:  # the record, .claude.json, its rules, and then the skill
            raise OSError(errno.EDQUOT, os.strerror(errno.EDQUOT))
        fsync(fd)

    monkeypatch.setattr(os, "fsync", full)
    assert setup("claude", "--yes").code == 1
    monkeypatch.undo()
    monkeypatch.setenv("HOME", str(home))
    assert everything(home) == before
    assert "nothing to change" in setup("claude", "--undo", "--yes").out


def test_a_record_of_an_older_nsm_removes_no_file(home: Path, setup: Nsm) -> None:
    write(home, PEOPLES["codex"])
    setup("codex", "--yes")
    path = home / ".local/state/nsm/setup/codex.json"
    rows: dict[str, Any] = json.loads(path.read_text())
    for row in rows["files"]:
        del row["splices"]
    path.write_text(json.dumps(rows))
    before = everything(home)
    said = setup("codex", "--undo", "--yes")
    assert (said.code, "of another nsm" in said.err) == (1, True)
    assert everything(home) == before


def many(home: Path, client: str) -> Iterator[subprocess.Popen[bytes]]:
    program = [sys.executable, "-P", "-m", "nsm.cli", "setup", client, "--yes"]
    for _ in range(4):
        yield subprocess.Popen(program, env={"HOME": str(home)}, stdout=subprocess.DEVNULL)


def test_several_at_once(home: Path, setup: Nsm) -> None:
    write(home, PEOPLES["zed"])
    started = [process for client in ("zed", "codex") for process in many(home, client)]
    assert [process.wait() for process in started] == [0] * 8
    text = (home / ".config/zed/settings.json").read_text()
    assert text.count('"nsm"') == text.count("mcp:nsm:run") == 1
    for client in ("zed", "codex"):
        assert setup(client, "--undo", "--yes").code == 0
    assert (home / ".config/zed/settings.json").read_text() == ZED


def test_the_skill_is_short_and_says_what_is_true() -> None:
    text = agent("claude", PROGRAM, {}).wanted[-1].value
    assert len(text) / 4 < 600  # tokens, as the tool's description is measured
    head = re.match(r"---\nname: nsm\ndescription: ([^\n]{1,1024})\n---\n", text)
    assert head is not None
    assert ": " not in head[1]  # it would have to be quoted
    arguments = set(run_tool.schema([], fork=True, undo=True)["properties"])
    named = set(re.findall(r"`([a-z_]+)(?::|`)", text))
    programs = {"run", "python", "bash", "node", "overlay", "matplotlib", "nsm"}
    assert named <= arguments | programs, named - arguments - programs
    assert arguments - {"env", "code"} <= named
