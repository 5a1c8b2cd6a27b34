"""Programs of the bridge, started by the SDK's own client."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from pathlib import Path

import pytest
import trio
from mcp_types import CallToolResult

from fake_programs import FakeProgramCall, FakePrograms
from nsmd.bridge.programs import ProgramEnd
from sdk_bench import ERAS, Bench, Connect, running_bench, text_of
from shim_process import shim


@pytest.fixture
async def bench(tmp_path: Path) -> AsyncGenerator[Bench, None]:
    async with running_bench(tmp_path) as made:
        made.programs = FakePrograms("deploy")
        yield made


@pytest.fixture
def connect(bench: Bench) -> Connect:
    """Over memory: tests/e2e/test_bridge_clients.py goes through the shim."""
    return bench.by_memory


def succeed(started: FakeProgramCall) -> None:
    started.answer(ProgramEnd(exit_code=0, stdout=f"{started.asked.arguments}\n"))


@pytest.mark.parametrize("mode", ERAS)
async def test_list_help_and_execute(bench: Bench, connect: Connect, mode: str) -> None:
    bench.programs.auto = succeed
    async with connect(mode) as client:
        tools = {tool.name: tool for tool in (await client.list_tools()).tools}
        assert list(tools) == ["run", "list_programs", "help", "execute"]
        annotations = tools["execute"].annotations
        assert annotations is not None
        assert (annotations.destructive_hint, annotations.open_world_hint) == (True, True)
        assert text_of(await client.call_tool("list_programs")) == "- deploy: Does deploy."
        assert text_of(await client.call_tool("help", {"program": "deploy"})) == "Does deploy."
        arguments = {"program": "deploy", "args": ["ä 😀", "--x=$y"]}
        result = await client.call_tool("execute", arguments)
        assert (text_of(result), result.is_error) == ("['ä 😀', '--x=$y']\n", False)
        assert result.meta is not None
        assert result.meta["nsm"]["exit_code"] == 0


@pytest.mark.parametrize("mode", ERAS)
async def test_lines_come_as_progress(bench: Bench, connect: Connect, mode: str) -> None:
    told: list[tuple[float, str | None]] = []
    heard = trio.Event()

    async def hear(progress: float, total: float | None, message: str | None) -> None:
        assert total is None
        told.append((progress, message))
        if len(told) == 3:
            heard.set()

    results: list[CallToolResult] = []
    async with connect(mode) as client, trio.open_nursery() as nursery:

        async def call() -> None:
            arguments = {"program": "deploy"}
            results.append(await client.call_tool("execute", arguments, progress_callback=hear))

        nursery.start_soon(call)
        started = await bench.programs.next()
        started.on_line("stdout", "one")
        started.on_line("stderr", "two")
        started.on_line("stdout", "three")
        await heard.wait()
        started.answer(ProgramEnd(exit_code=3, stdout="one\nthree\n", stderr="two\n"))
    assert [message for _, message in told] == ["one", "[stderr] two", "three"]
    times = [progress for progress, _ in told]
    assert times == sorted(set(times))
    assert text_of(results[0]) == "Command failed (exit 3): two\n[stdout]\none\nthree"
    assert results[0].is_error


@pytest.mark.parametrize("mode", ERAS)
async def test_cancelling_stops_it_and_the_client_goes_on(
    bench: Bench, connect: Connect, mode: str
) -> None:
    async with connect(mode) as client:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(client.call_tool, "execute", {"program": "deploy"})
            started = await bench.programs.next()
            nursery.cancel_scope.cancel()
        await started.interrupted.wait()
        assert text_of(await client.call_tool("list_programs")) == "- deploy: Does deploy."


async def test_a_client_that_is_killed_has_ten_seconds(bench: Bench) -> None:
    async with shim(bench.path) as running:
        await running.initialize()
        params = {"name": "execute", "arguments": {"program": "deploy"}}
        await running.start("tools/call", params)
        started = await bench.programs.next()
        running.process.kill()
        await started.abandoned.wait()
        assert not started.interrupted.is_set()


async def test_an_entry_that_wants_none(bench: Bench) -> None:
    async with shim(bench.path, {"NSM_BRIDGE": "off"}) as running:
        await running.initialize()
        tools = (await running.request("tools/list"))["result"]["tools"]
        assert [tool["name"] for tool in tools] == ["run"]
        params = {"name": "execute", "arguments": {"program": "deploy"}}
        answer = await running.request("tools/call", params)
        assert answer["error"]["message"].startswith("There is no tool 'execute'.")
