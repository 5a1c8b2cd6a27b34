"""Agents themselves in boxes, where they are installed; none of them is asked to use its maker's
service. `NSM_TEST_AGENTS` names directories with their programs, like PATH, which is looked in
otherwise: `npm install @anthropic-ai/claude-code @openai/codex @google/gemini-cli opencode-ai`
makes `node_modules/.bin`.
"""

from __future__ import annotations

import base64
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from box.bridge import furnish
from box.modelapi import model
from box.world import HOME, PROJECT, World, open_world

if TYPE_CHECKING:
    from collections.abc import Generator

pytestmark = [pytest.mark.jail, pytest.mark.slow]

PREFIX = f"{HOME}/.npm-of-agents"

PROMPT = "compute"


@pytest.fixture(scope="module")
def home() -> Generator[World]:
    """A world with a supervisor."""
    with open_world() as world, world.supervisor():
        yield world


def installed(name: str) -> str:
    """An agent's program, all links followed; else the test is skipped."""
    path = shutil.which(name, path=os.environ.get("NSM_TEST_AGENTS"))
    if path is None:
        pytest.skip(f"not here: no {name} (see tests/nsmbox/test_real_agents.py)")
    return os.path.realpath(path)


def of_npm(world: World, name: str) -> dict[str, str]:
    """Have an agent in the world as npm installs it; the variables that make it be found."""
    parts = Path(installed(name)).parts
    if "node_modules" not in parts:
        pytest.skip(f"not here: {name} is not an npm package")
    place = parts.index("node_modules") + 1
    prefix = f"{PREFIX}/{name}"
    if not world.host(f"{prefix}/bin").exists():
        world.make_directory(f"{prefix}/lib/node_modules")
        world.show(Path(*parts[:place]), f"{prefix}/lib/node_modules")
        world.link(f"{prefix}/bin/{name}", "/".join(("../lib/node_modules", *parts[place:])))
    return {"PATH": f"{prefix}/bin:{world.variables['PATH']}"}


def answer(done: subprocess.CompletedProcess[str]) -> str:
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_claude_itself_answers_from_inside(home: World) -> None:
    variables = of_npm(home, "claude")
    assert "(Claude Code)" in answer(
        home.run("claudebox", "--yes", "--version", variables=variables)
    )
    told = answer(home.run("claudebox", "--yes", "mcp", "list", variables=variables))
    assert [line for line in told.splitlines() if "nsm" in line] == [
        "nsm: /run/nsm/bin/nsm-mcp  - ✔ Connected"
    ]


def ask(world: World, tool: str, arguments: dict[str, object]) -> str:
    """Return claude's answer after its model, a stand-in, had it use a tool."""
    with model(tool, arguments) as url:
        done = world.run(
            *("claudebox", "--yes", "-p", PROMPT),
            variables={
                **of_npm(world, "claude"),
                "ANTHROPIC_BASE_URL": url,
                "CLAUDEBOX_EXTRA_ENV": "ANTHROPIC_BASE_URL",
            },
        )
    return answer(done)


def test_claude_runs_code_in_sessions_without_asking(home: World) -> None:
    """A loop and an MCP client of its own; only the model is a stand-in."""
    seen = "os.uname().nodename != 'nsm-box', 'README.md' in os.listdir('/project')"
    code = f"import os; print(6 * 7, {seen})"
    told = ask(home, "mcp__nsm__run", {"env": "python", "code": code})
    assert told.startswith("42 True True")


def test_claude_runs_commands_in_the_box_without_asking(home: World) -> None:
    """By its own tool, with whatever shell and sandbox it has of its own."""
    command = "uname -n; echo by claude > made; cat ~/.ssh/id_ed25519 ~/.claude.json; ls -A ~/.ssh"
    told = ask(home, "Bash", {"command": command, "description": "looks around"})
    assert "nsm-box" in told
    assert "No such file" in told
    assert "SECRET" not in told
    assert home.host(f"{PROJECT}/made").read_text() == "by claude\n"


def test_claude_starts_a_program_of_the_host_without_asking(world: World) -> None:
    """The user agrees to that program before the box starts; the box has no other."""
    furnish(world)
    with world.supervisor('[bridge]\nenabled = true\n[box]\nbridge = ["deploy"]\n'):
        # Claude's -p does not wait for a server that is slow, as nsm is to its first client.
        answer(world.run("claudebox", "--yes", "mcp", "list", variables=of_npm(world, "claude")))
        told = ask(world, "mcp__nsm__execute", {"program": "deploy", "args": ["staging"]})
        assert told.strip().startswith("deploying staging as SECRET of ada: ssh key")
        told = ask(world, "mcp__nsm__execute", {"program": "wipe", "args": []})
        assert "Program 'wipe' not found. Available: deploy" in told
    assert world.host(f"{HOME}/deployed").read_text() == "staging\n"
    assert not world.host(f"{HOME}/wiped").exists()


def test_codex_is_offered_sessions(home: World) -> None:
    """By its own server, which starts MCP servers and lists what they offer."""
    asked: list[dict[str, object]] = [
        {"id": 0, "method": "initialize", "params": {"clientInfo": {"name": "t", "version": "1"}}},
        {"method": "initialized"},
        {"id": 1, "method": "mcpServerStatus/list", "params": {}},
    ]
    variables = of_npm(home, "codex")
    with home.popen(
        *("nsm", "box", "--yes", "--profile", "codex", "--", "app-server"), variables=variables
    ) as codex:
        assert codex.stdin is not None
        assert codex.stdout is not None
        for message in asked:
            codex.stdin.write(json.dumps(message).encode() + b"\n")
        codex.stdin.flush()
        told = next(found for line in codex.stdout if (found := json.loads(line)).get("id") == 1)
        codex.stdin.close()
        codex.terminate()
    (server,) = told["result"]["data"]
    assert server["name"] == "nsm"
    assert "run" in server["tools"]


@pytest.mark.parametrize(
    ("name", "line"),
    [
        ("gemini", "\N{CHECK MARK} nsm: /run/nsm/bin/nsm-mcp  (stdio) - Connected"),
        ("opencode", "\N{CHECK MARK} nsm"),
    ],
)
def test_other_agents_are_offered_sessions(home: World, name: str, line: str) -> None:
    done = home.box("mcp", "list", options=("--profile", name), variables=of_npm(home, name))
    assert line in answer(done) + done.stderr  # which is where Gemini prints it


@pytest.mark.parametrize(
    ("client", "program"),
    [("claude", "claude"), ("codex", "codex"), ("gemini", "gemini"), ("opencode", "opencode")],
)
def test_agents_read_what_setup_writes_and_it_is_taken_back(
    client: str, program: str, tmp_path: Path
) -> None:
    """No box: the agent's own list of servers, from its own files."""
    path = installed(program)
    socket = tmp_path / "control.sock"
    environment = {"HOME": str(tmp_path), "PATH": os.environ["PATH"], "NSM_SOCKET": str(socket)}

    def run(*command: str) -> str:
        done = subprocess.run(
            command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=True
        )
        return done.stdout + done.stderr

    nsm = (sys.executable, "-P", "-m", "nsm.cli")
    run(*nsm, "setup", client, "--yes")
    try:
        assert f"{Path(sys.executable).parent}/nsm-mcp" in run(path, "mcp", "list")
        run(*nsm, "setup", client, "--undo", "--yes")
        assert "nsm-mcp" not in run(path, "mcp", "list")
    finally:
        if socket.exists():
            run(*nsm, "shutdown", "--yes")


def test_codex_runs_commands_of_others_in_a_box(home: World) -> None:
    """The worker itself confines nothing; the box does."""
    command = "uname -n; exec 3<>/dev/tcp/192.0.2.1/80 || echo no network; ls -A ~/.ssh"
    start = {
        "processId": "a",
        "argv": ["bash", "-c", command],
        "cwd": f"file://{PROJECT}",
        "env": {"PATH": "/usr/bin:/bin", "HOME": HOME},
        "tty": False,
        "arg0": None,
    }
    worker = home.popen(
        *("nsm", "box", "--yes", "--profile", "safe", "--network", "off", "--"),
        *("codex", "exec-server", "--listen", "stdio"),
        variables=of_npm(home, "codex"),
    )
    with worker:
        assert worker.stdin is not None
        assert worker.stdout is not None
        messages: list[dict[str, object]] = [
            {"id": 1, "method": "initialize", "params": {"clientName": "test"}},
            {"method": "initialized", "params": {}},
            {"id": 2, "method": "process/start", "params": start},
        ]
        for message in messages:
            worker.stdin.write(json.dumps(message).encode() + b"\n")
        worker.stdin.flush()
        printed = b""
        for line in worker.stdout:
            told = json.loads(line)
            assert "error" not in told
            if told.get("method") == "process/output":
                printed += base64.b64decode(told["params"]["chunk"])
            if told.get("method") == "process/closed":
                break
        worker.communicate()  # its input ends, so it ends
    assert b"nsm-box" in printed
    assert b"no network" in printed
    assert b"id_ed25519" not in printed
