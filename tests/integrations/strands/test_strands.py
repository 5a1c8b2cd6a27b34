"""Sandbox of Strands Agents, with the package itself; the supervisor is another Python's."""

# pyright: basic, reportMissingImports=false, reportAttributeAccessIssue=false
# mypy: ignore-errors

from __future__ import annotations

import asyncio
import os
from typing import TYPE_CHECKING, Any

import pytest
from strands import Agent
from strands.models import Model
from strands.sandbox.errors import SandboxPathNotFoundError, SandboxTimeoutError
from strands.sandbox.not_a_sandbox_local_environment import NotASandboxLocalEnvironment

import adapter_faults
import host_attacks
from nsm.integrations.strands import NsmSandbox

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Generator

    from e2e_support import Supervisor


@pytest.fixture
def sandbox(shared: Supervisor) -> Generator[NsmSandbox]:
    it = NsmSandbox()
    yield it
    it.close()


class ScriptedModel(Model):
    """A model that calls its tools as it was told to, then says that it is done."""

    def __init__(self, *calls: tuple[str, str]) -> None:
        self.calls = list(calls)

    def update_config(self, **_: Any) -> None:
        """Leave it as it is."""

    def get_config(self) -> dict[str, Any]:
        return {}

    async def structured_output(self, *_: Any, **__: Any) -> AsyncGenerator[Any]:
        raise NotImplementedError
        yield

    async def stream(self, *_: Any, **__: Any) -> AsyncGenerator[Any]:
        yield {"messageStart": {"role": "assistant"}}
        if self.calls:
            name, text = self.calls.pop(0)
            tool = {"toolUse": {"name": name, "toolUseId": f"{len(self.calls)}"}}
            yield {"contentBlockStart": {"start": tool}}
            yield {"contentBlockDelta": {"delta": {"toolUse": {"input": text}}}}
        else:
            yield {"contentBlockStart": {"start": {}}}
            yield {"contentBlockDelta": {"delta": {"text": "done"}}}
        yield {"contentBlockStop": {}}
        yield {"messageStop": {"stopReason": "tool_use" if "tool" in locals() else "end_turn"}}


def test_an_agent_with_a_scripted_model(sandbox: NsmSandbox) -> None:
    model = ScriptedModel(("sandbox_shell", '{"command": "echo one two three | wc -w"}'))
    agent = Agent(model=model, sandbox=sandbox, callback_handler=None)
    agent("How many words?")
    results = [
        block["toolResult"]["content"][0]["text"]
        for message in agent.messages
        for block in message["content"]
        if "toolResult" in block
    ]
    assert len(results) == 1
    assert "3" in results[0]


def test_commands(sandbox: NsmSandbox) -> None:
    async def main() -> None:
        done = await sandbox.execute(r"pwd; printf 'a\377'; echo $N >&2; exit 3", env={"N": "1"})
        assert (done.stdout, done.stderr, done.exit_code) == ("/workspace\na\ufffd", "1\n", 3)
        assert (await sandbox.execute("pwd", cwd="/tmp")).stdout == "/tmp\n"
        assert (await sandbox.execute("pwd", cwd="/none")).exit_code == 1
        with pytest.raises(ValueError, match="env"):
            await sandbox.execute("true", env={"A=B": "1"})
        with pytest.raises(SandboxTimeoutError) as late:
            await sandbox.execute("echo begun; sleep 1000", timeout=1)
        assert late.value.stdout == "begun\n"
        much = await sandbox.execute("yes | head -c 17000000")
        assert "bytes of the output are left out" in much.stderr

    asyncio.run(main())


def test_files(sandbox: NsmSandbox) -> None:
    async def main() -> None:
        data = os.urandom(3_000_000)
        await sandbox.write_file("a/b", data)
        assert await sandbox.read_file("a/b") == data
        await sandbox.execute("ln -s nowhere a/link; mkdir a/d")
        found = await sandbox.list_files("a")
        assert [(each.name, each.is_dir) for each in found] == [
            ("b", False),
            ("d", True),
            ("link", None),
        ]
        await sandbox.remove_file("a/link")
        with pytest.raises(IsADirectoryError):
            await sandbox.remove_file("a/d")
        with pytest.raises(FileNotFoundError):
            await sandbox.read_file("none")
        with pytest.raises(SandboxPathNotFoundError):
            await sandbox.list_files("none")

    asyncio.run(main())


class TestFaults(adapter_faults.AsyncFaults):
    owner = "strands"

    def open(self, **settings: Any) -> NsmSandbox:
        return NsmSandbox(**settings)

    async def arun(self, box: NsmSandbox, command: str) -> str:
        return (await box.execute(command)).stdout

    def attack_locally(self, target: host_attacks.Target) -> str:
        local = NotASandboxLocalEnvironment()
        return asyncio.run(local.execute_code(target.code, "python3")).stdout

    def run_for(self, box: NsmSandbox, command: str, seconds: float) -> None:
        with pytest.raises(SandboxTimeoutError):
            asyncio.run(box.execute(command, timeout=seconds))

    def close(self, box: NsmSandbox) -> None:
        box.close()
