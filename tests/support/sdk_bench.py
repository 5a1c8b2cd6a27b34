"""Clients of the SDK against the endpoint: over memory, and through a real `nsm-mcp`."""

from __future__ import annotations

import json
import os
import socket
import sys
from collections.abc import AsyncGenerator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest
import trio
import trio.testing
from mcp import Client, StdioServerParameters
from mcp.client.stdio import stdio_client
from mcp.shared.message import SessionMessage
from mcp_types import CallToolResult, TextContent, jsonrpc_message_adapter

from fake_programs import FakePrograms
from fake_runner import FakeRunner
from nsmd.mcp.attachment import EndpointLoader, serve_attachment
from nsmd.mcp.endpoint import serve

ERAS = ["legacy", pytest.param("auto", marks=pytest.mark.slow), "2026-07-28"]
Connect = Callable[..., AbstractAsyncContextManager[Client]]


def text_of(result: CallToolResult) -> str:
    (content,) = result.content
    assert isinstance(content, TextContent)
    return content.text


@asynccontextmanager
async def lines(stream: trio.abc.Stream) -> AsyncGenerator[tuple[Any, Any], None]:
    """A transport of the SDK over a stream of JSON lines."""
    to_client, from_server = anyio.create_memory_object_stream[SessionMessage | Exception](0)
    to_server, from_client = anyio.create_memory_object_stream[SessionMessage](0)

    async def receive() -> None:
        async with to_client:
            received = b""
            async for chunk in stream:
                *whole, received = (received + chunk).split(b"\n")
                for line in whole:
                    message = jsonrpc_message_adapter.validate_json(line, by_name=False)
                    await to_client.send(SessionMessage(message))

    async def send() -> None:
        async with from_client:
            async for item in from_client:
                line = item.message.model_dump_json(by_alias=True, exclude_unset=True)
                await stream.send_all(line.encode() + b"\n")

    async with trio.open_nursery() as nursery, from_server, to_server:
        nursery.start_soon(receive)
        nursery.start_soon(send)
        yield from_server, to_server
        nursery.cancel_scope.cancel()


class Bench:
    """A fake runner and fake programs behind the endpoint, and clients of either kind."""

    def __init__(self, nursery: trio.Nursery, directory: Path) -> None:
        self.runner = FakeRunner()
        self.programs = FakePrograms()
        self._nursery = nursery
        self.path = directory / "s"
        self._loader = EndpointLoader(serve)

    async def listen(self) -> None:
        listener = trio.socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        await listener.bind(os.fspath(self.path))
        listener.listen()
        await self._nursery.start(
            trio.serve_listeners, self._serve, [trio.SocketListener(listener)]
        )

    async def _serve(self, stream: trio.abc.HalfCloseableStream) -> None:
        await serve_attachment(
            stream,
            b"",
            self.runner.service,
            endpoint=self._loader,
            programs=self.programs.service,
        )

    @asynccontextmanager
    async def by_memory(self, mode: str, **more: Any) -> AsyncGenerator[Client, None]:
        ours, theirs = trio.testing.memory_stream_pair()
        self._nursery.start_soon(self._serve, theirs)
        async with ours:
            await ours.send_all(b'{"nsm":1,"attach":{}}\n')
            answer = b""
            while not answer.endswith(b"\n"):
                answer += await ours.receive_some(1)
            assert json.loads(answer)["ok"] is True
            async with Client(lines(ours), mode=mode, **more) as client:
                yield client

    @asynccontextmanager
    async def by_shim(self, mode: str, **more: Any) -> AsyncGenerator[Client, None]:
        parameters = StdioServerParameters(
            command=sys.executable,
            args=["-P", "-m", "nsm.shim"],
            env={"NSM_SOCKET": os.fspath(self.path), "NSM_AUTOSTART": "0"},
        )
        with Path(os.devnull).open("w", encoding="utf-8") as nowhere:  # noqa: ASYNC230
            transport = stdio_client(parameters, errlog=nowhere)
            async with Client(transport, mode=mode, **more) as client:
                yield client


@asynccontextmanager
async def running_bench(directory: Path) -> AsyncGenerator[Bench, None]:
    """Start a bench that listens in a directory."""
    async with trio.open_nursery() as nursery:
        made = Bench(nursery, directory)
        await made.listen()
        yield made
        nursery.cancel_scope.cancel()
