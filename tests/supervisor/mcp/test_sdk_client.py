"""The SDK's own client, through a real `nsm-mcp`: what is large, and a client that is killed.

`tests/mcpconformance` has a whole session of it.
"""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trio
from mcp import Client, StdioServerParameters
from mcp.client.session import ClientRequestContext
from mcp.client.stdio import stdio_client
from mcp_types import CallToolResult, ImageContent, ListRootsResult, Root, TextContent
from pydantic import FileUrl

import pictures
from fake_runner import FakeExecution, FakeRunner, echo
from json_peer import call_params
from mcp_peer import serve_stream
from shim_process import shim

ERAS = pytest.mark.parametrize("mode", ["legacy", "2026-07-28"])
LARGE = pictures.text(pictures.png(noise_bytes=3_900_000))
SMALL = pictures.text(pictures.jpeg())
SHOWN = [
    {"text/plain": "<Figure>", "image/png": LARGE},
    {"image/jpeg": SMALL},
    {"text/plain": "<Figure>", "image/png": LARGE},
]


class Bench:
    """A fake runner that listens, and clients of it."""

    def __init__(self, path: Path) -> None:
        self.runner = FakeRunner()
        self.path = path

    async def listen(self, nursery: trio.Nursery) -> None:
        listener = trio.socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        await listener.bind(os.fspath(self.path))
        listener.listen()
        await nursery.start(trio.serve_listeners, self._serve, [trio.SocketListener(listener)])

    async def _serve(self, stream: trio.abc.HalfCloseableStream) -> None:
        await serve_stream(stream, self.runner)

    @asynccontextmanager
    async def connect(self, mode: str, **more: Any) -> AsyncGenerator[Client]:
        parameters = StdioServerParameters(
            command=sys.executable,
            args=["-P", "-m", "nsm.shim"],
            env={"NSM_SOCKET": os.fspath(self.path), "NSM_AUTOSTART": "0"},
        )
        with Path(os.devnull).open("w", encoding="utf-8") as nowhere:  # noqa: ASYNC230
            transport = stdio_client(parameters, errlog=nowhere)
            async with Client(transport, mode=mode, **more) as client:
                yield client


@pytest.fixture
async def bench(tmp_path: Path) -> AsyncGenerator[Bench]:
    async with trio.open_nursery() as nursery:
        made = Bench(tmp_path / "s")
        await made.listen(nursery)
        yield made
        nursery.cancel_scope.cancel()


def text_of(result: CallToolResult) -> str:
    (content,) = result.content
    assert isinstance(content, TextContent)
    return content.text


@ERAS
async def test_a_result_has_as_many_images_of_the_size_that_it_may_have(
    bench: Bench, mode: str
) -> None:
    def show(execution: FakeExecution) -> None:
        execution.finish("text\n", displays=SHOWN)

    bench.runner.auto = show
    async with bench.connect(mode) as client:
        text, *images = (await client.call_tool("run", {"env": "python", "code": "x"})).content
        assert isinstance(text, TextContent)
        assert text.text.count("4x3]\n") == 3
        assert [
            (image.mime_type, image.data) for image in images if isinstance(image, ImageContent)
        ] == [("image/png", LARGE), ("image/jpeg", SMALL), ("image/png", LARGE)]


@ERAS
async def test_code_that_is_too_large_is_an_error_and_the_next_call_is_served(
    bench: Bench, mode: str
) -> None:
    bench.runner.auto = echo
    async with bench.connect(mode) as client:
        for size, limit in ((8 * 1024 * 1024 + 1, "8,388,608"), (17 * 1024 * 1024, "16,777,216")):
            result = await client.call_tool("run", {"env": "python", "code": "x" * size})
            assert f"the limit is {limit}" in text_of(result)
            assert result.is_error
        big = "ä 😀" * 10_000
        assert text_of(await client.call_tool("run", {"env": "python", "code": big})) == big


async def test_a_client_that_is_killed_abandons_its_calls(bench: Bench) -> None:
    async with shim(bench.path) as running:
        await running.initialize()
        await running.start("tools/call", call_params({"env": "python", "code": "x"}))
        execution = await bench.runner.next()
        running.process.kill()
        await execution.abandoned.wait()
        assert not execution.interrupted.is_set()


async def test_the_first_root_of_a_client_is_its_project(bench: Bench) -> None:
    async def roots(context: ClientRequestContext) -> ListRootsResult:
        return ListRootsResult(roots=[Root(uri=FileUrl("file:///home/u/project"))])

    bench.runner.auto = echo
    async with bench.connect("legacy", list_roots_callback=roots) as client:
        await client.call_tool("run", {"env": "python", "code": "x"})
        assert {asked[1] for asked in bench.runner.asked_projects} == {"/home/u/project"}
