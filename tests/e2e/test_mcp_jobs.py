"""Jobs as models have them: long work in the background, through a real MCP client."""

from __future__ import annotations

import os
import signal
from typing import TYPE_CHECKING, Any, Literal

import pytest
import trio
from mcp import Client, MCPError
from mcp.client.extension import ClaimContext, ClientExtension, ResultClaim
from mcp_types import CallToolResult, Request, RequestParams, Result

import nsm
from e2e_mcp import server, text_of
from e2e_support import end_supervisor, supervisor, wait_gone
from http_support import CONFIG, sdk_client, token_of, url_of
from nsmd.mcp.jobs import EXTENSION

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from e2e_support import Supervisor

MODERN: Any = "2026-07-28"

GATED = {
    "python": "import os\nprint('begins')\nopen('gate').read()\nprint('ends')\nos._exit(3)",
    "bash": "echo begins; cat gate; echo ends; exit 3",
}
"""Code that waits until somebody opens a pipe of that name."""


async def call(client: Client, **arguments: Any) -> tuple[str, CallToolResult]:
    result = await client.call_tool("run", arguments)
    return text_of(result), result


@pytest.mark.parametrize("env", ["python", "bash"])
async def test_long_work_is_read_in_pieces(emptied: Supervisor, env: str) -> None:
    async with Client(server(emptied.variables)) as client:
        await call(client, code="mkfifo gate", env="bash", session="gates")
        await call(client, code="import os; os.mkfifo('gate')", env="python", session="s-python")
        await call(client, code="mkfifo gate", env="bash", session="s-bash")
        session = f"s-{env}"
        text, _ = await call(client, code=GATED[env], env=env, session=session, background=True)
        assert text == f"[job {session}/1 runs; a call with `job` tells what it has printed since]"
        # The session's own interpreter goes on meanwhile.
        text, _ = await call(client, code="echo $((6 * 7))", env="bash", session="s-bash")
        assert text.startswith("42\n")
        text = ""
        while "begins" not in text:
            text, result = await call(client, job=f"{session}/1", timeout_seconds=0.1)
            assert not result.is_error
        assert text.startswith(f"begins\n[job {session}/1 runs, for ")
        assert (await call(client, job="1", session=session))[0].startswith("[job")
        opened = {"python": "open('gate', 'w').close()", "bash": ": > gate"}[env]
        await call(client, code=opened, env=env, session=session)
        text, result = await call(client, job=f"{session}/1", timeout_seconds=60)
        assert text.startswith(f"ends\n[job {session}/1 has ended after ")
        assert text.endswith("exit code 3]")
        assert result.is_error


async def test_a_job_is_stopped_and_leaves_no_file(emptied: Supervisor) -> None:
    async with Client(server(emptied.variables)) as client:
        await call(
            client,
            code="import time\nprint('up')\ntime.sleep(600)",
            env="python",
            session="s",
            background=True,
        )
        text, result = await call(client, job="s/1", stop=True)
        assert "it was stopped" in text
        assert not result.is_error
        listed, _ = await call(client, code="import os; os.listdir()", env="python", session="s")
        assert listed.startswith("[]\n")


async def test_a_job_in_node_may_await_and_require(emptied: Supervisor) -> None:
    code = "const fs = require('fs');\nawait null;\nconsole.log(fs.existsSync('.'))"
    async with Client(server(emptied.variables)) as client:
        text, _ = await call(client, code="typeof process.getBuiltinModule", env="node")
        if "undefined" in text:
            pytest.skip("Node 18 has no top-level await in such a file")
        await call(client, code=code, env="node", session="s", background=True)
        text, result = await call(client, job="s/1", timeout_seconds=60)
        assert text.startswith("true\n[job s/1 has ended after ")
        assert not result.is_error


async def test_a_reset_needs_no_code(emptied: Supervisor) -> None:
    async with Client(server(emptied.variables)) as client:
        await call(client, code="x = 1", env="python", session="s")
        text, result = await call(client, session="s", reset=True)
        assert "was reset as this call asked" in text
        assert not result.is_error
        assert (await call(client, code="x", env="python", session="s"))[1].is_error


@pytest.mark.slow
async def test_a_result_may_be_larger_than_one_answer_of_an_agent(short_dir: Path) -> None:
    with supervisor(short_dir, config="[mcp]\nmax_result_chars = 1_000_000\n") as it:
        async with Client(server(it.variables)) as client:
            code = "printf '%0300000d' 7"
            await call(client, code=code, env="bash", session="s", background=True)
            text, _ = await call(client, job="s/1", timeout_seconds=60)
            rest, _ = await call(client, job="s/1")
    assert text.partition("\n")[0] + rest.partition("\n")[0] == f"{7:0300000}"


async def test_unknown_jobs_and_sessions_are_told(emptied: Supervisor) -> None:
    async with Client(server(emptied.variables)) as client:
        text, result = await call(client, job="nobody/1")
        assert result.is_error
        assert "There is no session 'nobody'" in text
        await call(client, code="1", env="python", session="s")
        text, result = await call(client, job="s/1")
        assert result.is_error
        assert "There is no job '1'" in text
        assert "`background`" in text
        assert "nsm jobs" not in text
        text, result = await call(client, session="nobody", reset=True)
        assert result.is_error
        assert "`env` in a call" in text


@pytest.mark.slow
async def test_output_is_told_once_across_a_killed_supervisor(short_dir: Path) -> None:
    with supervisor(short_dir) as first:
        try:
            await _ask_while_supervisors_die(first)
        finally:
            end_supervisor(first.socket)


async def _ask_while_supervisors_die(first: Supervisor) -> None:
    code = "i=0; while read -r line; do echo $((i += 1)); done < gate; exit 4"
    async with Client(server(first.variables)) as client:
        await call(client, code="mkfifo gate", env="bash", session="s")
        await call(client, code=code, env="bash", session="s", background=True)
        await call(client, code="exec 9> gate", env="bash", session="s")
        told = ""
        for expected in range(1, 4):
            await call(client, code="echo >&9", env="bash", session="s")
            with first.client() as other:
                pid = other.status().pid
            fd = os.pidfd_open(pid)
            async with trio.open_nursery() as nursery:
                if expected == 2:
                    nursery.start_soon(_kill, fd)
                while f"{expected}\n" not in told:
                    text, _ = await call(client, job="s/1", timeout_seconds=0.2)
                    told += text.partition("[")[0]
            if expected == 2:
                wait_gone([fd])
            else:
                os.close(fd)
        await call(client, code="exec 9>&-", env="bash", session="s")
        text, _ = await call(client, job="s/1", timeout_seconds=60)
        assert told + text.partition("[")[0] == "1\n2\n3\n"
        assert "exit code 4" in text


async def _kill(fd: int) -> None:
    signal.pidfd_send_signal(fd, signal.SIGKILL)


class TaskResult(Result):
    """A task, as a server creates it or tells of it."""

    result_type: Literal["task"] = "task"
    task_id: str
    status: str


class TaskParams(RequestParams):
    task_id: str


class TaskRequest(Request[TaskParams, str]):
    pass


class TaskState(Result):
    status: str
    result: CallToolResult | None = None


class TaskExtension(ClientExtension):
    """A client's side of tasks: polls until the task has ended."""

    identifier = EXTENSION

    def __init__(self, *, cancels: bool = False) -> None:
        self.seen: list[str] = []
        self._cancels = cancels

    def claims(self) -> Sequence[ResultClaim[Any]]:
        return [ResultClaim(result_type="task", model=TaskResult, resolve=self._resolve)]

    async def _resolve(self, task: TaskResult, ctx: ClaimContext) -> CallToolResult:
        self.seen.append(task.status)

        async def send(method: str) -> TaskState:
            request = TaskRequest(method=method, params=TaskParams(task_id=task.task_id))
            model: Any = TaskState if method == "tasks/get" else Result
            state: TaskState = await ctx.session.send_request(request, model)
            return state

        if self._cancels:
            await send("tasks/cancel")
        state = await send("tasks/get")
        while state.status == "working":  # each round takes the time of an answer
            state = await send("tasks/get")
        self.seen.append(state.status)
        assert state == await send("tasks/get") or self._cancels, "told again as it was"
        return state.result or CallToolResult(content=[])


async def test_a_client_that_takes_tasks_gets_one(emptied: Supervisor) -> None:
    tasks = TaskExtension()
    async with Client(server(emptied.variables), mode=MODERN, extensions=[tasks]) as client:
        text, result = await call(
            client, code="print('ü' * 3); 1 / 0", env="python", session="s", background=True
        )
        assert tasks.seen == ["working", "completed"]
        assert text.startswith("üüü\nTraceback")
        assert "ZeroDivisionError" in text
        assert result.is_error
        # Other calls are answered as always.
        assert (await call(client, code="print(1)", env="python"))[0].startswith("1\n")


@pytest.mark.parametrize("method", ["tasks/get", "tasks/update", "tasks/cancel"])
async def test_a_client_that_takes_no_tasks_cannot_ask(emptied: Supervisor, method: str) -> None:
    async with Client(server(emptied.variables), mode=MODERN) as client:
        await call(client, code="echo x", env="bash", session="s", background=True)
        request = TaskRequest(method=method, params=TaskParams(task_id="s/1"))
        with pytest.raises(MCPError) as caught:
            await client.session.send_request(request, Result)
        assert caught.value.error.code == -32021
        assert caught.value.error.data == {"requiredCapabilities": {"extensions": {EXTENSION: {}}}}


async def test_a_cancelled_task_is_stopped(emptied: Supervisor) -> None:
    tasks = TaskExtension(cancels=True)
    async with Client(server(emptied.variables), mode=MODERN, extensions=[tasks]) as client:
        code = "trap 'exit 5' INT; echo up; while :; do read -t 1 <> <(:); done"
        await call(client, code=code, env="bash", session="s", background=True)
        assert tasks.seen == ["working", "cancelled"]
        with emptied.client() as other, pytest.raises(nsm.NsmError):
            other.call("job_stop", {"target": "s", "job": "9"})


@pytest.mark.slow
async def test_a_client_over_http_has_its_own_jobs_and_no_ports(short_dir: Path) -> None:
    with supervisor(short_dir, config=CONFIG) as it, it.client() as person:
        job = person.exec("s", ["sh", "-c", "echo secret; cat"], env="bash", stdin=True)
        async with sdk_client(url_of(it), token_of(it)) as client:
            tools = (await client.list_tools()).tools
            assert [tool.name for tool in tools] == ["run"]
            assert not {"port", "listen"} & tools[0].input_schema["properties"].keys()
            for name in ("port_open", "ports", "job_read", "exec"):
                with pytest.raises(MCPError, match="no tool"):
                    await client.call_tool(name, {"target": "s", "port": 8000})
            text, result = await call(client, job="s/1")
            assert result.is_error
            assert "There is no session 's'" in text
            text, _ = await call(client, code="echo own", env="bash", session="s", background=True)
            assert text.startswith("[job s/1 runs")
            text, result = await call(client, job="s/1", timeout_seconds=60)
            assert text.startswith("own\n[job s/1 has ended")
        assert person.ports.list() == []
        assert job.wait(0.0).running
        job.close_stdin()
        assert job.collect().stdout == b"secret\n"
