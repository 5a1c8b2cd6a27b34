"""Terminals of the Agent Client Protocol, with its SDK and a scripted agent over stdio."""

# pyright: basic, reportMissingImports=false

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import acp
import pytest
from acp.schema import ClientCapabilities, FileSystemCapabilities

import host_attacks
import nsm
from e2e_support import end_supervisor, supervisor, variables_for
from nsm.integrations.acp_terminals import NsmTerminals

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

    from e2e_support import Supervisor

AGENT = str(Path(__file__).with_name("scripted_agent.py"))


class Editor(NsmTerminals, acp.Client):
    """An editor without a screen."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.said = ""

    async def session_update(self, session_id: str, update: Any, **_: Any) -> None:
        self.said += update.content.text


@pytest.fixture(autouse=True)
def running(monkeypatch: pytest.MonkeyPatch) -> Generator[Supervisor]:
    with tempfile.TemporaryDirectory(prefix="nsm-") as path:
        for name, value in variables_for(Path(path)).items():
            monkeypatch.setenv(name, value)
        monkeypatch.setenv("SECRET_TOKEN", "of the host")
        with supervisor(Path(path), keep=True) as it:
            yield it
        end_supervisor(it.socket)


async def converse(editor: Editor, *steps: tuple[str, dict[str, Any]]) -> list[Any]:
    """Have an agent take steps; their results."""
    async with acp.spawn_agent_process(editor, sys.executable, AGENT) as (agent, _):
        can = ClientCapabilities(terminal=True, fs=FileSystemCapabilities())
        await agent.initialize(protocol_version=acp.PROTOCOL_VERSION, client_capabilities=can)
        session = await agent.new_session(cwd="/", mcp_servers=[])
        prompt = [acp.text_block(json.dumps(steps))]
        await agent.prompt(session_id=session.session_id, prompt=prompt)
    told: list[Any] = json.loads(editor.said)
    return told


def talk(*steps: tuple[str, dict[str, Any]], **settings: Any) -> list[Any]:
    async def run() -> list[Any]:
        editor = Editor(**settings)
        try:
            return await converse(editor, *steps)
        finally:
            await editor.close_terminals()
            await editor.close_terminals()

    told = asyncio.run(run())
    with nsm.Client() as client:
        assert [row for row in client.sessions() if row.scope == "acp"] == []
    return told


CREATE, OUTPUT, WAIT, KILL, RELEASE = (
    *("create_terminal", "terminal_output", "wait_for_terminal_exit", "kill_terminal"),
    "release_terminal",
)
FIRST = {"terminal_id": "$0"}
SECOND = {"terminal_id": "$1"}


def test_commands_share_files_and_end_with_their_codes() -> None:
    told = talk(
        (CREATE, {"command": "echo hello > file; echo to stderr >&2; exit 3"}),
        (WAIT, FIRST),
        (OUTPUT, FIRST),
        (RELEASE, FIRST),
        (OUTPUT, FIRST),
        (CREATE, {"command": "cat", "args": ["file"], "env": [["A", "1"]]}),
        (WAIT, SECOND),
        (OUTPUT, SECOND),
    )
    assert told[1] == {"exit_code": 3}
    ended = {"exit_code": 3}
    assert told[2] == {"output": "to stderr\n", "truncated": False, "exit_status": ended}
    assert told[4]["error"] == "Resource not found"
    assert told[7]["output"] == "hello\n"


@pytest.fixture
def project() -> Generator[Path]:
    """A directory that jails of root, which are not root's, can read."""
    with tempfile.TemporaryDirectory(prefix="nsm-") as path:
        Path(path).chmod(0o755)
        yield Path(path)


def test_a_command_is_in_a_jail(project: Path) -> None:
    (project / "sub").mkdir()
    (project / "sub" / "words").write_text("one two")
    told = talk(
        (CREATE, {"command": 'pwd; cat words; echo "<$SECRET_TOKEN$GIVEN>"; touch words new; '
                  "cat /etc/shadow ~/.ssh/id_rsa; exec 3<>/dev/tcp/192.0.2.1/80",
                  "cwd": str(project / "sub"), "env": [["GIVEN", "yes"]]}),
        (WAIT, FIRST),
        (OUTPUT, FIRST),
        (CREATE, {"command": "pwd", "cwd": "/etc"}),
        project=str(project),
    )  # fmt: skip
    lines = told[2]["output"].splitlines()
    assert lines[:2] == ["/project/sub", "one two<yes>"]
    assert "Read-only file system" in told[2]["output"]
    assert told[2]["output"].count("No such file or directory") == 2
    assert told[2]["exit_status"]["exit_code"] != 0
    assert [path.name for path in (project / "sub").iterdir()] == ["words"]
    assert "is not in the project" in told[3]["data"]["details"]


def test_a_hostile_model_reaches_nothing(tmp_path: Path) -> None:
    """The SDK has no terminals of its own: editors run commands as plain programs."""
    with host_attacks.target(tmp_path) as target:
        theirs = subprocess.run(target.argv, capture_output=True, text=True, check=True).stdout
        command = {"command": target.argv[0], "args": target.argv[1:]}
        told = talk((CREATE, command), (WAIT, FIRST), (OUTPUT, FIRST), env="python")
    assert host_attacks.gained(theirs) == host_attacks.ALL
    assert host_attacks.gained(told[2]["output"]) == set()


def test_output_while_it_runs_limits_and_bytes_that_are_no_text() -> None:
    told = talk(
        (CREATE, {"command": "printf 'a\\377b'; printf 'ä%.0s' $(seq 100)",
                  "output_byte_limit": 11}),
        (WAIT, FIRST),
        (OUTPUT, FIRST),
        (CREATE, {"command": "printf 'a\\377b'"}),
        (WAIT, SECOND),
        (OUTPUT, SECOND),
    )  # fmt: skip
    assert told[2]["output"] == "ä" * 5
    assert told[2]["truncated"]
    assert told[5]["output"] == "a\ufffdb"


def test_a_command_is_killed_with_all_that_it_has_started() -> None:
    told = talk(
        (CREATE, {"command": "echo up; sleep 1000 & sleep 1000"}),
        (KILL, FIRST),
        (WAIT, FIRST),
        (OUTPUT, FIRST),
        (KILL, FIRST),
        (CREATE, {"command": "cat /proc/[0-9]*/comm | grep -c sleep"}),
        (WAIT, SECOND),
        (OUTPUT, SECOND),
    )
    assert told[2]["signal"].startswith("SIG")
    assert told[3]["exit_status"] == told[2]
    assert told[4] == {}
    assert told[7]["output"] == "0\n"


def test_what_can_not_be_started() -> None:
    told = talk(
        (CREATE, {"command": "no-such-program", "args": ["x"]}),
        (CREATE, {"command": "true", "cwd": "/workspace/none"}),
        (OUTPUT, {"terminal_id": "other"}),
        (WAIT, {"terminal_id": "other"}),
    )
    assert "nsm: " in told[0]["data"]["details"]
    assert "nsm: " in told[1]["data"]["details"]
    assert [each["error"] for each in told[2:]] == ["Resource not found"] * 2


def run(scenario: Callable[[Editor], Any]) -> None:
    async def run() -> None:
        editor = Editor()
        try:
            await scenario(editor)
        finally:
            await editor.close_terminals()

    asyncio.run(run())


def test_a_real_time_signal_ends_a_command() -> None:
    told = talk((CREATE, {"command": "kill -40 $$"}), (WAIT, FIRST))
    assert told[1] == {"signal": "signal 40"}


def test_half_a_character_is_told_once_it_is_whole() -> None:
    async def scenario(editor: Editor) -> None:
        made = (await editor.create_terminal("s", "mkfifo f")).terminal_id
        await editor.wait_for_terminal_exit("s", made)
        command = "printf 'a\\342\\202'; cat f; printf '\\254'"
        terminal = (await editor.create_terminal("s", command)).terminal_id
        while not (seen := await editor.terminal_output("s", terminal)).output:
            pass
        assert seen.output == "a"
        await editor.create_terminal("s", ": >f")
        await editor.wait_for_terminal_exit("s", terminal)
        assert (await editor.terminal_output("s", terminal)).output == "a\u20ac"

    run(scenario)


def test_a_wait_that_is_cancelled_leaves_the_command() -> None:
    async def scenario(editor: Editor) -> None:
        terminal = (await editor.create_terminal("s", "read line; echo end")).terminal_id
        waiting = asyncio.ensure_future(editor.wait_for_terminal_exit("s", terminal))
        await asyncio.sleep(0)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        exit_ = await editor.wait_for_terminal_exit("s", terminal)
        assert exit_.exit_code == 0  # its input is empty

    run(scenario)


def test_a_session_that_ends_kills_its_command_and_the_next_has_a_new_one() -> None:
    async def scenario(editor: Editor) -> None:
        terminal = (await editor.create_terminal("s", "sleep 1000")).terminal_id
        with nsm.Client() as client:
            client.kill([row.id for row in client.sessions() if row.scope == "acp"])
        assert (await editor.wait_for_terminal_exit("s", terminal)).signal == "SIGKILL"
        again = (await editor.create_terminal("s", "echo new")).terminal_id
        assert (await editor.wait_for_terminal_exit("s", again)).exit_code == 0
        assert (await editor.terminal_output("s", again)).output == "new\n"

    run(scenario)


def test_a_supervisor_that_is_killed(running: Supervisor) -> None:
    async def scenario(editor: Editor) -> None:
        terminal = (
            await editor.create_terminal("s", "cat; echo before; sleep 3; echo after")
        ).terminal_id
        running.process.kill()
        running.process.wait()
        assert (await editor.wait_for_terminal_exit("s", terminal)).exit_code == 0
        assert (await editor.terminal_output("s", terminal)).output == "before\nafter\n"

    run(scenario)
