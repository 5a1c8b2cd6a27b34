"""Workspace of OpenHands, with its agent server and tools themselves in a session.

The agent runs in the server, so a model of the test's own process (`TestLLM`) is not asked. A
server in the session stands for the model instead.
"""

# pyright: basic, reportMissingImports=false

from __future__ import annotations

import json
import os
import sys
import tempfile
import urllib.error
import urllib.request
from pathlib import Path
from typing import TYPE_CHECKING

import httpx
import pytest
from openhands.sdk import LLM, Agent, Conversation, LocalWorkspace, Tool
from openhands.sdk.event import ObservationEvent
from openhands.tools.terminal import TerminalTool
from pydantic import SecretStr

import adapter_faults
import host_attacks
import nsm
import scripted_model
from e2e_support import supervisor
from nsm.integrations.openhands import NsmAgentServer

if TYPE_CHECKING:
    from collections.abc import Generator

    from e2e_support import Supervisor

CONFIG = f"""
[environments.openhands]
preset = "python"
interpreter = "{sys.executable}"
memory_mb = 2048
"""

MODEL = Path(scripted_model.__file__).read_bytes()
MODEL_PORT = 9000


@pytest.fixture(scope="module", autouse=True)
def running() -> Generator[Supervisor]:
    """A supervisor whose environment `openhands` has the packages."""
    with (
        tempfile.TemporaryDirectory(prefix="nsm-") as path,
        pytest.MonkeyPatch.context() as patch,
        supervisor(Path(path), config=CONFIG) as it,
    ):
        patch.setenv("NSM_SOCKET", it.socket)
        yield it


@pytest.fixture(scope="module")
def workspace(running: Supervisor) -> Generator[NsmAgentServer]:
    with NsmAgentServer() as it:
        yield it


def sessions() -> list[nsm.SessionRow]:
    with nsm.Client() as client:
        return [row for row in client.sessions() if row.scope == "openhands"]


def scripted(workspace: NsmAgentServer, *answers: dict[str, object]) -> LLM:
    """Start a model in the session, which gives these answers."""
    assert workspace.session is not None
    with nsm.Client() as client:
        files = client.files(workspace.session)
        files.write("/tmp/model.py", MODEL)
        files.write("/tmp/answers.json", json.dumps(answers).encode())
        argv = ["python3", "/tmp/model.py", "/tmp/answers.json", str(MODEL_PORT)]
        client.exec(workspace.session, argv)
    url = f"http://127.0.0.1:{MODEL_PORT}/v1"
    return LLM(model="openai/scripted", base_url=url, api_key=SecretStr("-"), usage_id="test")


def test_a_conversation(workspace: NsmAgentServer) -> None:
    answers = [
        scripted_model.call("terminal", command="echo one two three | wc -w >n; cat n"),
        scripted_model.call("finish", message="Three."),
    ]
    agent = Agent(llm=scripted(workspace, *answers), tools=[Tool(name=TerminalTool.name)])
    conversation = Conversation(agent=agent, workspace=workspace)
    conversation.send_message("How many words?")
    conversation.run()
    said = [each for each in conversation.state.events if isinstance(each, ObservationEvent)]
    conversation.close()
    assert "\n3" in f"\n{said[0].observation.text}"


def test_a_hostile_model_reaches_nothing(workspace: NsmAgentServer, tmp_path: Path) -> None:
    with host_attacks.target(tmp_path) as target:
        program = tmp_path / "attack.py"
        program.write_text(target.code)
        theirs = LocalWorkspace(working_dir=tmp_path).execute_command(f"python3 {program}")
        workspace.file_upload(target.code.encode(), "/workspace/attack.py")
        ours = workspace.execute_command("python3 /workspace/attack.py")
    assert host_attacks.gained(theirs.stdout) == host_attacks.ALL
    assert host_attacks.gained(ours.stdout) == set()


def test_commands_and_files(workspace: NsmAgentServer, tmp_path: Path) -> None:
    done = workspace.execute_command("pwd; echo a >&2; exit 3")
    assert (done.stdout, done.exit_code) == ("/workspace\n", 3)
    data = os.urandom(5_000_000)
    assert workspace.file_upload(data, "/workspace/a/b").success
    assert workspace.file_download("/workspace/a/b", tmp_path / "b").success
    assert (tmp_path / "b").read_bytes() == data
    assert not workspace.file_download("/workspace/none", tmp_path / "c").success
    assert workspace.execute_command(r"printf 'a\377b'").stdout == "a\ufffdb"


def test_a_command_that_takes_too_long(workspace: NsmAgentServer) -> None:
    done = workspace.execute_command("sleep 1000", timeout=1)
    assert done.timeout_occurred
    assert workspace.execute_command("echo on").stdout == "on\n"


def test_others_cannot_use_the_server(workspace: NsmAgentServer) -> None:
    request = urllib.request.Request(f"{workspace.host}/api/conversations/count")
    with pytest.raises(urllib.error.HTTPError, match="401"):
        urllib.request.urlopen(request, timeout=30)


def test_a_project_is_copied_and_sessions_end() -> None:
    with tempfile.TemporaryDirectory(prefix="nsm-") as path:
        os.chmod(path, 0o755)
        Path(path, "notes.txt").write_text("one two three")
        workspace = NsmAgentServer(project=path)
        done = workspace.execute_command("wc -w notes.txt; echo x >made; pwd")
        assert done.stdout == "3 notes.txt\n/project\n"
        assert not Path(path, "made").exists()
    (row,) = (each for each in sessions() if each.id == workspace.session)
    assert row.labels["owner"] == "openhands"
    workspace.cleanup()
    workspace.cleanup()
    assert workspace.session not in [each.id for each in sessions()]
    with pytest.raises(httpx.ConnectError):
        workspace.execute_command("true", timeout=1)


def test_an_environment_without_the_server() -> None:
    with pytest.raises(RuntimeError, match=r"No module named 'openhands'[^$]*nsm env add"):
        NsmAgentServer(env="python")  # pyright: ignore[reportCallIssue]
    with pytest.raises(RuntimeError, match="no-such"):
        NsmAgentServer(env="no-such")  # pyright: ignore[reportCallIssue]


def test_a_supervisor_that_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The session goes on, and so does the port."""
    with adapter_faults.own_supervisor(monkeypatch, CONFIG) as it:
        workspace = NsmAgentServer()
        adapter_faults.kill(it)
        assert workspace.execute_command("echo on").stdout == "on\n"
        workspace.cleanup()
        assert sessions() == []
