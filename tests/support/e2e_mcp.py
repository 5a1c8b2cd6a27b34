"""Clients of the MCP package, connected through the real shim, that learn of changed tools."""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import trio
from mcp import Client, StdioServerParameters
from mcp_types import CallToolResult, TextContent

from e2e_support import program

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping

TIMEOUT_S = 120


def server(variables: Mapping[str, str], **more: str) -> StdioServerParameters:
    """The shim, as a client has it in its configuration."""
    # The working directory is the clone, which under root may be closed to the jails' user.
    return StdioServerParameters(command=program("nsm-mcp"), env={**variables, **more}, cwd="/usr")


def text_of(result: CallToolResult) -> str:
    return "".join(part.text for part in result.content if isinstance(part, TextContent))


@asynccontextmanager
async def connected(
    variables: Mapping[str, str], mode: Any = "legacy"
) -> AsyncGenerator[tuple[Client, Callable[[], Awaitable[None]]]]:
    """A client, and what waits until it is told that the tools have changed."""
    told, changes = trio.open_memory_channel[None](100)

    async def take(message: object) -> None:
        if "ToolListChanged" in type(message).__name__:
            told.send_nowait(None)

    async def changed() -> None:
        with trio.fail_after(TIMEOUT_S):
            await changes.receive()

    async with Client(server(variables), mode=mode, message_handler=take) as client:
        if mode == "legacy":
            yield client, changed
            return
        async with client.listen(tools_list_changed=True) as events:

            async def listened() -> None:
                with trio.fail_after(TIMEOUT_S):
                    await anext(aiter(events))

            yield client, listened


async def description(client: Client) -> str:
    (tool,) = (await client.list_tools(cache_mode="refresh")).tools
    return tool.description or ""


async def call(client: Client, code: str, env: str, **more: Any) -> tuple[str, bool]:
    """Text without what is said of a new session or a text that is JSON, and whether it is an
    error."""
    result: CallToolResult = await client.call_tool("run", {"code": code, "env": env, **more})
    return text_of(result).partition("[session ")[0].removesuffix("[exit code 0]"), bool(
        result.is_error
    )
