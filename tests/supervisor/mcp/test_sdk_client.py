"""The SDK's own client against the endpoint: over memory, and through a real `nsm-mcp`."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from pathlib import Path

import pytest
import trio
from mcp import Client
from mcp.client.session import ClientRequestContext
from mcp_types import (
    CallToolResult,
    ImageContent,
    Implementation,
    ListRootsResult,
    Root,
    TextContent,
)
from pydantic import FileUrl

import pictures
from fake_runner import FakeExecution, echo
from json_peer import call_params
from sdk_bench import ERAS, Bench, Connect, running_bench, text_of
from shim_process import shim


def fail(execution: FakeExecution) -> None:
    execution.finish("oh", exit_code=3)


def show(execution: FakeExecution) -> None:
    execution.finish("text\n", displays=SHOWN)


@pytest.fixture
async def bench(tmp_path: Path) -> AsyncGenerator[Bench, None]:
    async with running_bench(tmp_path) as made:
        yield made


@pytest.fixture(params=["memory", "shim"])
def connect(bench: Bench, request: pytest.FixtureRequest) -> Connect:
    return bench.by_memory if request.param == "memory" else bench.by_shim


@pytest.mark.parametrize("mode", ERAS)
async def test_list_and_call(bench: Bench, connect: Connect, mode: str) -> None:
    bench.runner.auto = echo
    async with connect(mode) as client:
        (tool,) = (await client.list_tools()).tools
        assert tool.name == "run"
        assert tool.annotations is not None
        assert tool.annotations.open_world_hint is False
        result = await client.call_tool("run", {"env": "python", "code": "hello ä 😀"})
        assert (text_of(result), result.is_error) == ("hello ä 😀", False)
        assert result.meta is not None
        assert result.meta["nsm"]["exit_code"] == 0
        big = "x" * 39_000
        assert text_of(await client.call_tool("run", {"env": "python", "code": big})) == big
        request = (await bench.runner.next()).request
        assert (request.env, request.client.name) == ("python", "mcp")


LARGE = pictures.text(pictures.png(noise_bytes=3_900_000))
SHOWN = [
    {"text/plain": "<Figure>", "image/png": LARGE},
    {"image/jpeg": pictures.text(pictures.jpeg())},
    {"text/plain": "<Figure>", "image/png": LARGE},
]


@pytest.mark.parametrize("mode", ERAS)
async def test_images(bench: Bench, connect: Connect, mode: str) -> None:
    """A result has as many images, of the size, that it may have."""
    bench.runner.auto = show
    async with connect(mode) as client:
        result = await client.call_tool("run", {"env": "python", "code": "x"})
        text, *images = result.content
        assert isinstance(text, TextContent)
        assert text.text == (
            "text\n[image 1: image/png, 4x3]\n[image 2: image/jpeg, 4x3]\n"
            "[image 3: image/png, 4x3]\n"
        )
        assert [
            (image.mime_type, image.data) for image in images if isinstance(image, ImageContent)
        ] == [
            ("image/png", LARGE),
            ("image/jpeg", pictures.text(pictures.jpeg())),
            ("image/png", LARGE),
        ]
        assert result.structured_content is None


@pytest.mark.parametrize("mode", ERAS)
async def test_errors_are_results(bench: Bench, connect: Connect, mode: str) -> None:
    bench.runner.auto = fail
    async with connect(mode) as client:
        result = await client.call_tool("run", {"env": "python", "code": "x"})
        assert (text_of(result), result.is_error) == ("oh\n[exit code 3]", True)
        result = await client.call_tool("run", {"env": "python"})
        assert "`code` is missing" in text_of(result)
        assert result.is_error
        code = "x" * (8 * 1024 * 1024 + 1)
        result = await client.call_tool("run", {"env": "python", "code": code})
        assert "the limit is 8,388,608" in text_of(result)
        code = "x" * (17 * 1024 * 1024)
        result = await client.call_tool("run", {"env": "python", "code": code})
        assert "the limit is 16,777,216" in text_of(result)


@pytest.mark.parametrize("mode", ERAS)
async def test_progress(bench: Bench, connect: Connect, mode: str) -> None:
    told: list[tuple[float, str | None]] = []
    heard = trio.Event()

    async def hear(progress: float, total: float | None, message: str | None) -> None:
        assert total is None
        told.append((progress, message))
        heard.set()

    async with connect(mode) as client, trio.open_nursery() as nursery:
        results: list[CallToolResult] = []

        async def call() -> None:
            arguments = {"env": "python", "code": "x"}
            results.append(await client.call_tool("run", arguments, progress_callback=hear))

        nursery.start_soon(call)
        execution = await bench.runner.next()
        execution.print("half way\n")
        await heard.wait()
        execution.finish("half way\ndone\n")
    assert [message for _, message in told] == ["half way\n"]
    assert text_of(results[0]) == "half way\ndone\n"


@pytest.mark.parametrize("mode", ERAS)
async def test_cancelling_interrupts_and_the_client_goes_on(
    bench: Bench, connect: Connect, mode: str
) -> None:
    async with connect(mode) as client:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(client.call_tool, "run", {"env": "python", "code": "x"})
            execution = await bench.runner.next()
            nursery.cancel_scope.cancel()
        await execution.interrupted.wait()
        bench.runner.auto = echo
        result = await client.call_tool("run", {"env": "python", "code": "fine"})
        assert text_of(result) == "fine"


@pytest.mark.parametrize("mode", ERAS)
async def test_parallel_calls(bench: Bench, connect: Connect, mode: str) -> None:
    answers: dict[str, str] = {}
    async with connect(mode) as client, trio.open_nursery() as nursery:

        async def call(name: str) -> None:
            arguments = {"env": "python", "code": name, "session": name}
            answers[name] = text_of(await client.call_tool("run", arguments))

        for name in "abc":
            nursery.start_soon(call, name)
        executions = [await bench.runner.next() for _ in "abc"]
        for execution in reversed(executions):
            execution.finish(execution.request.code)
    assert answers == {"a": "a", "b": "b", "c": "c"}


async def test_a_client_that_is_killed_abandons_what_runs(bench: Bench) -> None:
    async with shim(bench.path) as running:
        await running.initialize()
        await running.start("tools/call", call_params({"env": "python", "code": "x"}))
        execution = await bench.runner.next()
        running.process.kill()
        await execution.abandoned.wait()
        assert not execution.interrupted.is_set()


async def test_two_clients_at_once_in_two_eras(bench: Bench, connect: Connect) -> None:
    info = Implementation(name="second", version="1")
    answers: dict[str, str] = {}

    async def call(client: Client, name: str) -> None:
        arguments = {"env": "python", "code": "x", "session": "same"}
        answers[name] = text_of(await client.call_tool("run", arguments))

    async with (
        connect("legacy") as one,
        connect("2026-07-28", client_info=info) as two,
        trio.open_nursery() as nursery,
    ):
        nursery.start_soon(call, one, "mcp")
        nursery.start_soon(call, two, "second")
        executions = [await bench.runner.next(), await bench.runner.next()]
        assert {e.request.client.scope for e in executions} == {"mcp:-", "second:-"}
        for execution in executions:
            execution.finish(execution.request.client.name)
    assert answers == {"mcp": "mcp", "second": "second"}


async def test_roots_of_the_sdk_client(bench: Bench, connect: Connect) -> None:
    async def roots(context: ClientRequestContext) -> ListRootsResult:
        return ListRootsResult(roots=[Root(uri=FileUrl("file:///home/u/project"))])

    bench.runner.auto = echo
    async with connect("legacy", list_roots_callback=roots) as client:
        await client.call_tool("run", {"env": "python", "code": "x"})
        assert {asked[1] for asked in bench.runner.asked_projects} == {"/home/u/project"}
