"""Shell middleware of LangChain with its shell in sessions, with the package itself."""

# pyright: basic, reportMissingImports=false
# mypy: ignore-errors

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from langchain.agents import create_agent
from langchain.agents.middleware import HostExecutionPolicy, ShellToolMiddleware
from langchain_core.language_models.fake_chat_models import GenericFakeChatModel
from langchain_core.messages import AIMessage, ToolMessage

import adapter_faults
import host_attacks
import nsm
from nsm.integrations.langchain_shell import NsmExecutionPolicy

if TYPE_CHECKING:
    from collections.abc import Generator

    from langchain.agents.middleware import BaseExecutionPolicy

    from e2e_support import Supervisor


@pytest.fixture
def policy(shared: Supervisor) -> Generator[NsmExecutionPolicy]:
    with NsmExecutionPolicy() as it:
        yield it


@pytest.fixture
def workspace() -> Generator[Path]:
    """A directory of the host, which everybody may read."""
    with tempfile.TemporaryDirectory(prefix="nsm-") as path:
        os.chmod(path, 0o755)
        yield Path(path)


class ScriptedModel(GenericFakeChatModel):
    """A model that says what it was told to, and may be offered tools."""

    def bind_tools(self, tools: Any, **_: Any) -> ScriptedModel:
        return self


def run(policy: BaseExecutionPolicy, *commands: str, **settings: Any) -> list[ToolMessage]:
    """Have an agent give commands to its shell, ``restart`` being the tool's other argument."""
    calls: list[dict[str, Any]] = [
        {"restart": True} if each == "restart" else {"command": each} for each in commands
    ]
    answers = [
        AIMessage("", tool_calls=[{"name": "shell", "args": args, "id": str(number)}])
        for number, args in enumerate(calls)
    ]
    model = ScriptedModel(messages=iter([*answers, AIMessage("done")]))
    shell = ShellToolMiddleware(execution_policy=policy, **settings)
    agent = create_agent(model, middleware=[shell])
    found = agent.invoke({"messages": [("user", "go")]}, {"recursion_limit": 500})
    return [each for each in found["messages"] if isinstance(each, ToolMessage)]


def sessions() -> list[nsm.SessionRow]:
    with nsm.Client() as client:
        return [row for row in client.sessions() if row.scope == "langchain"]


def test_an_agent_keeps_its_shell(policy: NsmExecutionPolicy) -> None:
    said = run(policy, "pwd; n=41", "echo $((n + 1)) $GIVEN; false", "echo a >&2", env={"GIVEN": 1})
    assert [each.content for each in said] == [
        "/workspace\n",
        "42 1\n\nExit code: 1",
        "[stderr] a\n",
    ]
    assert [each.status for each in said] == ["success", "error", "success"]


def test_a_hostile_model_reaches_nothing(policy: NsmExecutionPolicy, tmp_path: Path) -> None:
    with host_attacks.target(tmp_path) as target:
        attack = f"cat >a.py <<'EOF'\n{target.code}\nEOF\npython3 a.py"
        (theirs,) = run(HostExecutionPolicy(), attack, env=dict(os.environ))
        (ours,) = run(policy, attack)
    assert host_attacks.gained(theirs.content) == host_attacks.ALL
    assert host_attacks.gained(ours.content) == set()


def test_a_directory_of_the_host_is_copied(policy: NsmExecutionPolicy, workspace: Path) -> None:
    (workspace / "notes.txt").write_text("one two three")
    (first,) = run(policy, "wc -w notes.txt; echo x >made", workspace_root=workspace)
    assert first.content == "3 notes.txt\n"
    assert not (workspace / "made").exists()
    (second,) = run(policy, "pwd; cat made", workspace_root=workspace)
    assert second.content == "/project\nx\n"


def test_a_restart_keeps_files_and_another_run_has_none(policy: NsmExecutionPolicy) -> None:
    said = run(policy, "n=1; echo kept >f", "restart", "echo $n; cat f")
    assert said[2].content == "\nkept\n"
    assert "No such file" in run(policy, "cat f")[0].content
    assert len(sessions()) == 1, "that of the first run ended when the second one began"


def test_a_command_that_takes_too_long_ends_with_its_children(shared: Supervisor) -> None:
    with NsmExecutionPolicy(command_timeout=2, termination_timeout=0.1) as policy:
        ends = 'until [ -z "$(cat /proc/$(cat pid)/cmdline 2>/dev/null)" ]; do sleep 0.05; done'
        said = run(policy, "sleep 1000 & echo $! >pid; wait", ends)
    assert said[0].content == "Error: Command timed out after 2.0 seconds."
    assert said[1].content == "<no output>"


def test_bytes_that_are_no_text_and_a_shell_that_ends(shared: Supervisor) -> None:
    """LangChain waits its whole time for the answer of a shell that has ended."""
    with NsmExecutionPolicy(command_timeout=3) as policy:
        said = run(policy, r"printf 'a\377\0b\n'", "kill -9 $$", "restart", "echo again")
    assert said[0].content == "a\ufffd\0b\n"
    assert said[3].content == "again\n"


def test_much_output_and_long_commands(policy: NsmExecutionPolicy) -> None:
    said = run(policy, "seq 200000", f": {'x' * 300_000}; echo end")
    assert "Output truncated at 100 lines (observed 200000)" in said[0].content
    assert said[1].content == "end\n"


def test_a_session_that_is_ended_by_somebody(policy: NsmExecutionPolicy, workspace: Path) -> None:
    run(policy, "echo 1", workspace_root=workspace)
    with nsm.Client() as client:
        client.kill([row.id for row in sessions()])
    assert run(policy, "echo 2", workspace_root=workspace)[0].content == "2\n"


def test_settings(shared: Supervisor) -> None:
    with pytest.raises(TypeError, match="workspace_root"):
        NsmExecutionPolicy(project="/")
    with pytest.raises(TypeError):
        NsmExecutionPolicy(no_such_setting=1)
    with pytest.raises(ValueError, match="positive"):
        NsmExecutionPolicy(max_output_lines=0)


class TestFaults(adapter_faults.AdapterFaults):
    """Each command is a run of an agent, with a shell of its own in the directory's session."""

    owner = "langchain"
    refusal = RuntimeError
    at_once = 20

    @pytest.fixture(autouse=True)
    def directory(self, workspace: Path) -> None:
        self.workspace = workspace

    def open(self, **settings: Any) -> NsmExecutionPolicy:
        return NsmExecutionPolicy(**settings)

    def run(self, box: NsmExecutionPolicy, command: str) -> str:
        (said,) = run(box, command, workspace_root=self.workspace)
        return said.content

    def run_for(self, box: NsmExecutionPolicy, command: str, seconds: float) -> None:
        box.command_timeout, usual = seconds, box.command_timeout
        assert "timed out" in self.run(box, command)
        box.command_timeout = usual

    def close(self, box: NsmExecutionPolicy) -> None:
        box.close()
