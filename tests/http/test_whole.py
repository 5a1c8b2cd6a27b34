"""A real supervisor and the SDK's client, over HTTP."""

from __future__ import annotations

from collections.abc import Generator

import pytest
from mcp_types import TextContent

from e2e_support import Supervisor, supervisor
from http_support import CONFIG, sdk_client, token_of, url_of


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Generator[Supervisor]:
    with supervisor(tmp_path_factory.mktemp("h"), config=CONFIG) as running:
        yield running


@pytest.mark.parametrize("mode", ["legacy", "auto", "2026-07-28"])
async def test_the_sdks_client_runs_code(served: Supervisor, mode: str) -> None:
    async with sdk_client(url_of(served), token_of(served), mode) as client:
        assert [tool.name for tool in (await client.list_tools()).tools] == ["run"]
        call = {"env": "python", "code": "print(6 * 7)", "session": f"of-{mode}"}
        (content,) = (await client.call_tool("run", call)).content
    assert isinstance(content, TextContent)
    assert content.text.startswith("42\n")
