"""Backend of Deep Agents with LangChain's suite for sandboxes, and LangChain's shell middleware."""

# pyright: basic, reportMissingImports=false
# mypy: ignore-errors

from __future__ import annotations

import importlib.metadata
import os
import shlex
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from deepagents import create_deep_agent
from langchain.agents import create_agent
from langchain.agents.middleware import HostExecutionPolicy, ShellToolMiddleware
from langchain_core.language_models.fake_chat_models import GenericFakeChatModel
from langchain_core.messages import AIMessage, ToolMessage
from langchain_tests.integration_tests import SandboxIntegrationTests

import adapter_faults
import host_attacks
import nsm
from nsm.integrations.deepagents import NsmBackend
from nsm.integrations.langchain_shell import NsmExecutionPolicy

if TYPE_CHECKING:
    from collections.abc import Generator

    from langchain.agents.middleware import BaseExecutionPolicy

    from e2e_support import Supervisor

pytestmark = pytest.mark.anyio

FAIL_EVERYWHERE = {
    "test_glob",
    "test_glob_basic_pattern",
    "test_glob_hidden_files_explicitly",
    "test_glob_with_character_class",
    "test_glob_with_directories",
    "test_glob_with_question_mark",
    "test_write_existing_file_fails",
}
"""Tests of langchain-tests 1.1.9 that fail in what `BaseSandbox` of deepagents 0.7.32 does itself:
they expect names relative to a directory, and that `write` refuses a file that exists. They fail
with Deep Agents' own `LocalShellBackend`, too."""


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(scope="module")
def backend(shared: Supervisor) -> Generator[NsmBackend]:
    with NsmBackend() as it:
        yield it


@pytest.fixture
def fresh(shared: Supervisor) -> Generator[NsmBackend]:
    with NsmBackend() as it:
        yield it


class TestSuite(SandboxIntegrationTests):
    """LangChain's own tests of sandboxes."""

    @pytest.fixture(scope="module")
    def sandbox(self, backend: NsmBackend) -> NsmBackend:
        return backend

    @pytest.fixture(scope="module")
    def sandbox_backend(self, sandbox: NsmBackend) -> NsmBackend:
        return sandbox

    @pytest.fixture(autouse=True)
    def known_failures(self, request: pytest.FixtureRequest) -> None:
        if request.node.name in FAIL_EVERYWHERE:
            reason = "fails with every backend"
            request.applymarker(pytest.mark.xfail(reason=reason, strict=True))


class ScriptedModel(GenericFakeChatModel):
    """A model that says what it was told to, and may be offered tools."""

    def bind_tools(self, tools: Any, **_: Any) -> ScriptedModel:
        return self


def test_an_agent_with_a_scripted_model(fresh: NsmBackend) -> None:
    def call(name: str, **args: str) -> AIMessage:
        return AIMessage("", tool_calls=[{"name": name, "args": args, "id": name}])

    answers = [
        call("write_file", file_path="/workspace/notes.txt", content="six words are in this file"),
        call("execute", command="wc -w notes.txt"),
        AIMessage("done"),
    ]
    agent = create_deep_agent(model=ScriptedModel(messages=iter(answers)), backend=fresh)
    found = agent.invoke({"messages": [("user", "count")]})
    assert any("6 notes.txt" in str(each.content) for each in found["messages"])


def test_output_in_order_with_errors_and_other_bytes(fresh: NsmBackend) -> None:
    done = fresh.execute("echo a; echo b >&2; printf 'c\\377'; exit 3")
    assert (done.output, done.exit_code, done.truncated) == ("a\nb\nc\ufffd", 3, False)


def test_too_much_output_is_cut(fresh: NsmBackend) -> None:
    assert fresh.execute("yes | head -c 17000000").truncated


def test_errors_of_files(fresh: NsmBackend) -> None:
    fresh.execute("mkdir closed; touch closed/f; chmod 0 closed; ln -s loop loop")
    paths = ["f", "/nope", "/tmp", "/workspace/closed/f", "/etc/passwd/x", "/workspace/loop"]
    assert [each.error for each in fresh.download_files(paths)] == [
        "invalid_path",
        "file_not_found",
        "is_directory",
        "permission_denied",
        "invalid_path",
        "invalid_path",
    ]
    done = fresh.upload_files([("/usr/bin/x", b""), ("/workspace/a/b", b"\0\xff")])
    assert [each.error for each in done] == ["permission_denied", None]
    assert fresh.download_files(["/workspace/a/b"])[0].content == b"\0\xff"


def test_the_provider_is_registered() -> None:
    """The module needs Deep Agents Code, so Python 3.12; deep-agents-code has its tests."""
    (entry,) = importlib.metadata.entry_points(
        group="deepagents_code.sandbox_providers", name="nsm"
    )
    assert entry.value == "nsm.integrations.deepagents_code:NsmProvider"


class TestFaultsOfTheBackend(adapter_faults.AsyncFaults):
    owner = "deepagents"

    def open(self, **settings: Any) -> NsmBackend:
        return NsmBackend(**settings)

    async def arun(self, box: NsmBackend, command: str) -> str:
        return (await box.aexecute(command)).output

    def run(self, box: NsmBackend, command: str) -> str:
        return box.execute(command).output

    def run_for(self, box: NsmBackend, command: str, seconds: int) -> None:
        assert box.execute(command, timeout=seconds).exit_code == 124

    def close(self, box: NsmBackend) -> None:
        box.close()


# The shell middleware of LangChain.


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


def test_a_shell_whose_session_is_ended_by_somebody(
    policy: NsmExecutionPolicy, workspace: Path
) -> None:
    run(policy, "echo 1", workspace_root=workspace)
    with nsm.Client() as client:
        client.kill([row.id for row in sessions()])
    assert run(policy, "echo 2", workspace_root=workspace)[0].content == "2\n"


def test_settings_of_the_shell(shared: Supervisor) -> None:
    with pytest.raises(TypeError, match="workspace_root"):
        NsmExecutionPolicy(project="/")
    with pytest.raises(TypeError):
        NsmExecutionPolicy(no_such_setting=1)
    with pytest.raises(ValueError, match="positive"):
        NsmExecutionPolicy(max_output_lines=0)


class TestFaultsOfTheShell(adapter_faults.AdapterFaults):
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

    def attack_locally(self, target: host_attacks.Target) -> str:
        (said,) = run(HostExecutionPolicy(), shlex.join(target.argv), env=dict(os.environ))
        return said.content

    def run_for(self, box: NsmExecutionPolicy, command: str, seconds: float) -> None:
        box.command_timeout, usual = seconds, box.command_timeout
        assert "timed out" in self.run(box, command)
        box.command_timeout = usual

    def close(self, box: NsmExecutionPolicy) -> None:
        box.close()
