"""Fifty steps of an agent in a session, beside the same in the framework's own local executor.

    .venv/bin/python tools/integrations.py --steps            # every framework that has steps here
    .venv/bin/python tools/integrations.py --steps strands

Each step writes to a file, counts its lines and starts awk; for smolagents and Jupyter it is Python
code. Both sides work in turns, ten steps each. The numbers are times that somebody waits, and
depend on what else the machine does.
"""

# pyright: basic, reportMissingImports=false
# mypy: ignore-errors

from __future__ import annotations

import asyncio
import json
import os
import statistics
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / each) for each in ("tests/support", "tests", "tools")]

from e2e_support import supervisor  # noqa: E402  # the path is set above

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    Step = Callable[[int], Awaitable[str]]

CONFIG = f"""
[environments.framework]
preset = "python"
interpreter = "{sys.executable}"
memory_mb = 2048
"""
"""Environment that has the framework's own packages, for servers and kernels."""

CLOSING = ExitStack()
"""Calls that end kernels and servers before the supervisor ends."""

PATIENCE_S = 120
STEPS = 50
TURN = 10
COMMAND = "echo {0} >>{1}/log; wc -l <{1}/log; awk 'BEGIN {{ print {0} * 2 }}'"
CODE = """
with open("{1}/log", "a") as log:
    log.write("{0}\\n")
print(len(open("{1}/log").readlines()))
print({0} * 2)
"""


async def langchain(place: str) -> tuple[Step, Step]:
    from langchain.agents.middleware import HostExecutionPolicy
    from langchain.agents.middleware.shell_tool import ShellSession

    from nsm.integrations.langchain_shell import NsmExecutionPolicy

    def step(policy: Any, where: str) -> Step:
        workspace = Path(tempfile.mkdtemp(prefix="langchain-shell-", dir=place))
        shell = ShellSession(workspace, policy, ("/bin/bash",), dict(os.environ))
        shell.start()

        async def do(number: int) -> str:
            command = COMMAND.format(number, where)
            return (await asyncio.to_thread(shell.execute, command, timeout=60)).output

        return do

    return step(HostExecutionPolicy(), place), step(NsmExecutionPolicy(), "/workspace")


async def deep_agents(place: str) -> tuple[Step, Step]:
    from deepagents.backends import LocalShellBackend

    from nsm.integrations.deepagents import NsmBackend

    def step(backend: Any, where: str) -> Step:
        async def do(number: int) -> str:
            return (await backend.aexecute(COMMAND.format(number, where))).output

        return do

    local = LocalShellBackend(root_dir=place, virtual_mode=False, inherit_env=True)
    return step(local, place), step(NsmBackend(), "/workspace")


async def strands(place: str) -> tuple[Step, Step]:
    from strands.sandbox.not_a_sandbox_local_environment import NotASandboxLocalEnvironment

    from nsm.integrations.strands import NsmSandbox

    def step(sandbox: Any, where: str) -> Step:
        async def do(number: int) -> str:
            return (await sandbox.execute(COMMAND.format(number, where))).stdout

        return do

    return step(NotASandboxLocalEnvironment(), place), step(NsmSandbox(), "/workspace")


async def smolagents(place: str) -> tuple[Step, Step]:
    from smolagents.local_python_executor import LocalPythonExecutor

    from nsm.integrations.smolagents import NsmExecutor

    def step(executor: Any, where: str) -> Step:
        executor.send_tools({})

        async def do(number: int) -> str:
            return (await asyncio.to_thread(executor, CODE.format(number, where))).logs

        return do

    local = LocalPythonExecutor([], additional_functions={"open": open})
    return step(local, place), step(NsmExecutor(), "/workspace")


async def mini_swe_agent(place: str) -> tuple[Step, Step]:
    os.environ["MSWEA_SILENT_STARTUP"] = "1"
    from minisweagent.environments.local import LocalEnvironment

    from nsm.integrations.minisweagent import NsmEnvironment

    def step(environment: Any, where: str) -> Step:
        async def do(number: int) -> str:
            action = {"command": COMMAND.format(number, where)}
            return (await asyncio.to_thread(environment.execute, action))["output"]

        return do

    return step(LocalEnvironment(), place), step(NsmEnvironment(), "/workspace")


async def pydantic_ai(place: str) -> tuple[Step, Step]:
    from pydantic_ai.workspaces import LocalWorkspaceBackend

    from nsm.integrations.pydantic_ai import NsmWorkspace

    def step(workspace: Any, where: str) -> Step:
        async def do(number: int) -> str:
            return (await workspace.run(COMMAND.format(number, where), shell=True)).stdout

        return do

    return step(LocalWorkspaceBackend(place), place), step(NsmWorkspace(), "/workspace")


async def inspect_ai(place: str) -> tuple[Step, Step]:
    from inspect_ai.util._sandbox.local import LocalSandboxEnvironment

    from nsm.integrations.inspect_ai import NsmConfig, NsmSandboxEnvironment

    def step(sandbox: Any, where: str) -> Step:
        async def do(number: int) -> str:
            command = ["bash", "-c", COMMAND.format(number, where)]
            return (await sandbox.exec(command, concurrency=False)).stdout

        return do

    made = await NsmSandboxEnvironment.sample_init("steps", NsmConfig(), {})
    return step(LocalSandboxEnvironment(), place), step(made["default"], "/workspace")


async def swe_rex(place: str) -> tuple[Step, Step]:
    from swerex.runtime.abstract import BashAction, CreateBashSessionRequest
    from swerex.runtime.local import LocalRuntime

    from nsm.integrations.swerex import NsmRuntime

    async def step(runtime: Any, where: str) -> Step:
        await runtime.create_session(CreateBashSessionRequest())

        async def do(number: int) -> str:
            action = BashAction(command=COMMAND.format(number, where), timeout=60)
            return (await runtime.run_in_session(action)).output

        return do

    return await step(LocalRuntime(), place), await step(NsmRuntime(), "/workspace")


async def openai_agents(place: str) -> tuple[Step, Step]:
    from agents.sandbox.sandboxes import UnixLocalSandboxClient, UnixLocalSandboxClientOptions

    from nsm.integrations.openai_agents import NsmSandboxClient, NsmSandboxClientOptions

    async def step(client: Any, options: Any) -> Step:
        session = await client.create(options=options)
        await session.__aenter__()

        async def do(number: int) -> str:
            done = await session.exec(COMMAND.format(number, "."), shell=True)
            return done.stdout.decode()

        return do

    local = await step(UnixLocalSandboxClient(), UnixLocalSandboxClientOptions())
    return local, await step(NsmSandboxClient(), NsmSandboxClientOptions())


async def dcode(place: str) -> tuple[Step, Step]:
    from deepagents.backends import LocalShellBackend

    from nsm.integrations.deepagents_code import NsmProvider

    def step(backend: Any, where: str) -> Step:
        async def do(number: int) -> str:
            return (await backend.aexecute(COMMAND.format(number, where))).output

        return do

    local = LocalShellBackend(root_dir=place, inherit_env=True)
    return step(local, place), step(NsmProvider().get_or_create(), "/workspace")


async def openhands(place: str) -> tuple[Step, Step]:
    from openhands.sdk import LocalWorkspace

    from nsm.integrations.openhands import NsmAgentServer

    def step(workspace: Any, where: str) -> Step:
        async def do(number: int) -> str:
            command = COMMAND.format(number, where)
            return (await asyncio.to_thread(workspace.execute_command, command)).stdout

        return do

    # Its base is known only where the framework is installed.
    server = NsmAgentServer(env="framework")  # pyright: ignore[reportCallIssue]
    ours = CLOSING.enter_context(server)
    return step(LocalWorkspace(working_dir=place), place), step(ours, "/workspace")


async def jupyter(place: str) -> tuple[Step, Step]:
    from jupyter_client.manager import start_new_kernel

    specification = {
        "argv": ["python3", "-m", "ipykernel_launcher", "-f", "{connection_file}"],
        "display_name": "nsm",
        "language": "python",
        "metadata": {
            "kernel_provisioner": {"provisioner_name": "nsm", "config": {"env": "framework"}}
        },
    }
    directory = Path(place, "kernels", "nsm")
    directory.mkdir(parents=True)
    (directory / "kernel.json").write_text(json.dumps(specification))
    os.environ["JUPYTER_PATH"] = place

    def step(kernel: str, where: str) -> Step:
        manager, client = start_new_kernel(startup_timeout=PATIENCE_S, kernel_name=kernel)
        CLOSING.callback(manager.shutdown_kernel)
        CLOSING.callback(client.stop_channels)

        def execute(code: str) -> str:
            texts: list[str] = []

            def hook(message: dict[str, Any]) -> None:
                if message["header"]["msg_type"] == "stream":
                    texts.append(message["content"]["text"])

            client.execute_interactive(code, timeout=PATIENCE_S, output_hook=hook)
            return "".join(texts)

        async def do(number: int) -> str:
            return await asyncio.to_thread(execute, CODE.format(number, where))

        return do

    return step("python3", place), step("nsm", "/workspace")


FRAMEWORKS = {
    "deep-agents": [deep_agents, langchain],
    "deep-agents-code": [dcode],
    "inspect-ai": [inspect_ai],
    "jupyter": [jupyter],
    "mini-swe-agent": [mini_swe_agent],
    "openai-agents": [openai_agents],
    "openhands": [openhands],
    "pydantic-ai": [pydantic_ai],
    "smolagents": [smolagents],
    "strands": [strands],
    "swe-rex": [swe_rex],
}
"""Adapters whose framework has an executor that works here, by the directory of their tests."""


async def measure(begin: Any, place: str) -> str:
    """Do the steps on both sides, and return a line of the page's table."""
    sides = await begin(tempfile.mkdtemp(dir=place))
    times: tuple[list[float], list[float]] = ([], [])
    said: tuple[list[list[str]], list[list[str]]] = ([], [])
    for first in range(0, STEPS, TURN):
        for side in (0, 1) if first % (2 * TURN) else (1, 0):
            for number in range(first, first + TURN):
                before = time.perf_counter()
                output = await sides[side](number)
                times[side].append(time.perf_counter() - before)
                said[side].append(output.split())
    assert said[0] == said[1] == [[str(each + 1), str(each * 2)] for each in range(STEPS)], said
    theirs, ours = (statistics.median(each) * 1000 for each in times)
    return f"| {begin.__name__} | {theirs:.1f} ms | {ours:.1f} ms | {ours / theirs:.1f} |"


def main(name: str) -> None:
    """Measure a framework."""
    with (
        tempfile.TemporaryDirectory(prefix="nsm-") as path,
        tempfile.TemporaryDirectory(prefix="nsm-steps-") as place,
        supervisor(Path(path), config=CONFIG) as it,
        CLOSING,
    ):
        os.environ["NSM_SOCKET"] = it.socket
        for begin in FRAMEWORKS.get(name, []):
            print(asyncio.run(measure(begin, place)), flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
