"""The Python SDK's client against nsm over stdio and HTTP; the suite where its packages are."""

from __future__ import annotations

import tempfile
from collections.abc import Generator
from pathlib import Path

import pytest

from mcpconformance import page, suite
from mcpconformance.campaign import campaign
from mcpconformance.clients import LEGACY, MODERN, by_python, faults
from mcpconformance.suite import NotHereError, Packages
from mcpconformance.world import World, world

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
async def test_the_python_client_completes_a_session(nsm: World, over: str, revision: str) -> None:
    way = nsm.stdio if over == "stdio" else nsm.http
    assert faults(await by_python(way, revision=revision), revision=revision) == []


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
        results = await campaign(installed, Path(directory))
    assert page.failures(results) == []
    assert results == page.read()
