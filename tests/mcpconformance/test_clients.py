"""The Python SDK's client against nsm over stdio and HTTP; against the front with another server.

The other clients and the suite itself are run where npm's packages are.
"""

from __future__ import annotations

import tempfile
from collections.abc import AsyncGenerator, Generator
from pathlib import Path
from typing import Any

import pytest
from mcp.client.session import ClientRequestContext
from mcp_types import (
    AudioContent,
    CallToolResult,
    CreateMessageRequestParams,
    CreateMessageResult,
    ElicitRequestFormParams,
    ElicitRequestParams,
    ElicitResult,
    EmbeddedResource,
    ImageContent,
    ListRootsResult,
    Root,
    TextContent,
)
from pydantic import FileUrl

from http_support import sdk_client
from mcpconformance import page, suite
from mcpconformance.campaign import campaign
from mcpconformance.clients import LEGACY, MODERN, by_python, faults
from mcpconformance.suite import NotHereError, Packages
from mcpconformance.world import Served, World, front, world

pytestmark = pytest.mark.jail


@pytest.fixture(scope="module")
def nsm() -> Generator[World]:
    with (
        tempfile.TemporaryDirectory(prefix="nsm-", dir="/tmp") as directory,
        world(Path(directory)) as made,
    ):
        yield made


@pytest.mark.parametrize(
    ("revision", "over"),
    [
        (LEGACY, "stdio"),
        (MODERN, "http"),
        pytest.param(LEGACY, "http", marks=pytest.mark.slow),
        pytest.param(MODERN, "stdio", marks=pytest.mark.slow),
    ],
)
async def test_a_whole_session(nsm: World, over: str, revision: str) -> None:
    way = nsm.stdio if over == "stdio" else nsm.http.way()
    assert faults(await by_python(way, revision=revision), revision=revision) == []


# The front with a server that has more than nsm: what passes it in both directions.


async def fill_in(_context: ClientRequestContext, params: ElicitRequestParams) -> ElicitResult:
    assert isinstance(params, ElicitRequestFormParams)
    given: dict[str, Any] = dict.fromkeys(params.requested_schema["properties"], "Ada")
    return ElicitResult(action="accept", content=given)


async def sample(
    _context: ClientRequestContext, params: CreateMessageRequestParams
) -> CreateMessageResult:
    (message,) = params.messages
    assert isinstance(message.content, TextContent)
    return CreateMessageResult(
        role="assistant",
        content=TextContent(text=f"about {message.content.text!r}: yes"),
        model="none",
    )


async def roots(_context: ClientRequestContext) -> ListRootsResult:
    return ListRootsResult(roots=[Root(uri=FileUrl("file:///home/u/project"))])


@pytest.fixture
async def fronted(tmp_path: Path) -> AsyncGenerator[Served, None]:
    tmp_path.chmod(0o700)
    async with front(tmp_path) as served:
        yield served


@pytest.mark.parametrize("mode", ["legacy", MODERN])
async def test_all_kinds_of_content_pass_the_front(fronted: Served, mode: str) -> None:
    steps: list[tuple[float, float | None]] = []

    async def hear(progress: float, total: float | None, message: str | None) -> None:
        assert message is None
        steps.append((progress, total))

    async with sdk_client(fronted.url, fronted.token, mode) as client:

        async def content(tool: str) -> list[type[object]]:
            return [type(part) for part in (await client.call_tool(tool)).content]

        assert await content("test_image_content") == [ImageContent]
        assert await content("test_audio_content") == [AudioContent]
        mixed = await content("test_multiple_content_types")
        assert mixed == [TextContent, ImageContent, EmbeddedResource]
        assert (await client.call_tool("test_error_handling")).is_error
        await client.call_tool("test_tool_with_progress", progress_callback=hear)
        assert len((await client.list_resources()).resources) == 3
        read = await client.read_resource("test://template/7/data")
        assert "Data for ID: 7" in str(read.contents[0])
    assert steps == [(0, 100), (50, 100), (100, 100)]


async def test_questions_to_the_client_pass_the_front_within_a_call(fronted: Served) -> None:
    asks: Any = {"elicitation_callback": fill_in, "sampling_callback": sample}
    async with sdk_client(fronted.url, fronted.token, "legacy", **asks) as client:
        result = await client.call_tool("test_sampling", {"prompt": "is it?"})
        assert text_of(result) == "LLM response: about 'is it?': yes"
        result = await client.call_tool("test_elicitation", {"message": "who?"})
        assert text_of(result) == (
            'User response: action=accept, content={"username": "Ada", "email": "Ada"}'
        )


async def test_questions_to_the_client_pass_the_front_from_call_to_call(fronted: Served) -> None:
    asks: Any = {
        "elicitation_callback": fill_in,
        "sampling_callback": sample,
        "list_roots_callback": roots,
    }
    async with sdk_client(fronted.url, fronted.token, MODERN, **asks) as client:
        for tool, answer in {
            "test_input_required_result_elicitation": "Hello, Ada!",
            "test_input_required_result_multi_round": "both steps are done",
            "test_input_required_result_multiple_inputs": (
                "all of user_name, greeting, client_roots answered"
            ),
        }.items():
            assert text_of(await client.call_tool(tool)) == answer


def text_of(result: CallToolResult) -> str:
    (content,) = result.content
    assert isinstance(content, TextContent)
    return content.text


# MCP's own conformance suite and the other clients, where npm's packages are.


@pytest.fixture
def installed() -> Packages:
    try:
        return suite.packages()
    except NotHereError as error:
        pytest.skip(f"not here: {error}")


@pytest.mark.slow
@pytest.mark.jail
@pytest.mark.alone
async def test_results_are_those_in_docs_data(installed: Packages) -> None:
    with tempfile.TemporaryDirectory(prefix="nsm-mcp-", dir="/tmp") as directory:
        results = await campaign(installed, Path(directory), print)
    assert page.failures(results) == []
    assert results == page.read()
