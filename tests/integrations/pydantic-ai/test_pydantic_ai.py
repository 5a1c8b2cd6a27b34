"""Workspace of Pydantic AI, with the package itself and its conformance suite."""

# pyright: basic, reportMissingImports=false
# mypy: ignore-errors

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pydantic_ai import Agent, RunContext
from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart, ToolCallPart
from pydantic_ai.models.function import AgentInfo, FunctionModel
from pydantic_ai.workspaces import (
    LocalWorkspaceBackend,
    WorkspaceOutputLimitError,
    WorkspaceRef,
    WorkspaceTimeoutError,
)
from pydantic_ai.workspaces.conformance import WorkspaceBackendSuite

import adapter_faults
import host_attacks
from nsm.integrations.pydantic_ai import NsmWorkspace

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable, Callable

    from e2e_support import Supervisor

pytestmark = pytest.mark.anyio


@pytest.fixture(params=["asyncio", "trio"])
def anyio_backend(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture
async def workspace(shared: Supervisor, anyio_backend: str) -> AsyncGenerator[NsmWorkspace]:
    it = NsmWorkspace()
    yield it
    await it.aclose()


class TestSuite(WorkspaceBackendSuite):
    """Pydantic AI's own rules for backends. None is skipped but that of native `realpath`."""

    @pytest.fixture
    def backend(self, workspace: NsmWorkspace) -> NsmWorkspace:
        return workspace

    @pytest.fixture
    def fresh_backend(self, shared: Supervisor) -> type[NsmWorkspace]:
        return NsmWorkspace

    @pytest.fixture
    def attach_backend(self, shared: Supervisor) -> type[NsmWorkspace]:
        return NsmWorkspace

    @pytest.fixture
    def destroy_environment(self) -> Callable[[NsmWorkspace], Awaitable[None]]:
        return NsmWorkspace.aclose


@pytest.mark.parametrize("anyio_backend", ["asyncio"])  # agents need asyncio
async def test_an_agent_with_a_scripted_model(workspace: NsmWorkspace) -> None:
    def answer(messages: list[ModelMessage], _: AgentInfo) -> ModelResponse:
        if len(messages) == 1:
            return ModelResponse(parts=[ToolCallPart("shell", {"command": "echo 6 7 >f; wc -w f"})])
        return ModelResponse(parts=[TextPart(str(messages[-1].parts[0].content))])

    agent = Agent(FunctionModel(answer))

    @agent.tool
    async def shell(context: RunContext[Any], command: str) -> str:
        return (await context.workspace.run(command, shell=True)).stdout

    assert (await agent.run("go", workspace=workspace)).output == "2 f\n"


async def test_too_much_output(workspace: NsmWorkspace) -> None:
    with pytest.raises(WorkspaceOutputLimitError, match="Redirect its output to a file"):
        await workspace.run("yes | head -c 17000000", shell=True)


@pytest.mark.parametrize(
    ("command", "settings"),
    [
        (["a\0b"], {}),
        (["true"], {"env": {"A=B": "1"}}),
        (["true"], {"timeout": float("nan")}),
        (["true"], {"timeout": -1}),
        (["true", "x" * 3_000_000], {}),
    ],
)
async def test_what_cannot_be_asked_for_is_a_value_error(
    workspace: NsmWorkspace, command: list[str], settings: dict[str, Any]
) -> None:
    with pytest.raises(ValueError):  # noqa: PT011  # each has words of its own
        await workspace.run(command, **settings)


def test_a_reference_of_another_provider() -> None:
    with pytest.raises(ValueError, match="e2b"):
        NsmWorkspace(WorkspaceRef(provider="e2b", id="x"))


class TestFaults(adapter_faults.AsyncFaults):
    owner = "pydantic-ai"

    def open(self, **settings: Any) -> NsmWorkspace:
        return NsmWorkspace(**settings)

    async def arun(self, box: NsmWorkspace, command: str) -> str:
        return (await box.run(command, shell=True)).stdout

    def attack_locally(self, target: host_attacks.Target) -> str:
        return asyncio.run(LocalWorkspaceBackend(Path("/")).run(target.argv)).stdout

    def run_for(self, box: NsmWorkspace, command: str, seconds: float) -> None:
        with pytest.raises(WorkspaceTimeoutError):
            asyncio.run(box.run(command, shell=True, timeout=seconds))

    def close(self, box: NsmWorkspace) -> None:
        asyncio.run(box.aclose())
