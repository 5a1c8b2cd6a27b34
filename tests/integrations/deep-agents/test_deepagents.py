"""Backend of Deep Agents, with the package itself and LangChain's suite for sandboxes."""

# pyright: basic, reportMissingImports=false
# mypy: ignore-errors

from __future__ import annotations

import asyncio
import importlib.metadata
import subprocess
from typing import TYPE_CHECKING, Any

import pytest
from deepagents import create_deep_agent
from langchain_core.language_models.fake_chat_models import GenericFakeChatModel
from langchain_core.messages import AIMessage
from langchain_tests.integration_tests import SandboxIntegrationTests

import adapter_faults
import host_attacks
from nsm.integrations.deepagents import NsmBackend

if TYPE_CHECKING:
    from collections.abc import Generator
    from pathlib import Path

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


def test_a_hostile_model_reaches_nothing(fresh: NsmBackend, tmp_path: Path) -> None:
    with host_attacks.target(tmp_path) as target:
        theirs = subprocess.run(target.argv, capture_output=True, text=True, check=True).stdout
        assert host_attacks.gained(theirs) == host_attacks.ALL
        fresh.upload_files([("/tmp/attack.py", target.code.encode())])
        ours = fresh.execute("python3 /tmp/attack.py")
    assert host_attacks.gained(ours.output) == set()


def test_output_in_order_with_errors_and_other_bytes(fresh: NsmBackend) -> None:
    done = fresh.execute("echo a; echo b >&2; printf 'c\\377'; exit 3")
    assert (done.output, done.exit_code, done.truncated) == ("a\nb\nc\ufffd", 3, False)


def test_too_much_output_is_cut(fresh: NsmBackend) -> None:
    assert fresh.execute("yes | head -c 17000000").truncated


def test_a_cancelled_command_is_stopped(fresh: NsmBackend) -> None:
    async def main() -> None:
        task = asyncio.create_task(fresh.aexecute("echo $$ >pid; exec sleep 1000"))
        await fresh.aexecute("while ! [ -s pid ]; do sleep 0.05; done")
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(main())
    assert fresh.execute("while kill -0 $(cat pid) 2>/dev/null; do sleep 0.05; done").exit_code == 0


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


class TestFaults(adapter_faults.AdapterFaults):
    owner = "deepagents"

    def open(self, **settings: Any) -> NsmBackend:
        return NsmBackend(**settings)

    def run(self, box: NsmBackend, command: str) -> str:
        return box.execute(command).output

    def run_for(self, box: NsmBackend, command: str, seconds: int) -> None:
        assert box.execute(command, timeout=seconds).exit_code == 124

    def close(self, box: NsmBackend) -> None:
        box.close()
