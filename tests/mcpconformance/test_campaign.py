"""MCP's own conformance suite and the other clients, where npm's packages are."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest

from mcpconformance import page, suite, verdicts
from mcpconformance.campaign import campaign
from mcpconformance.suite import NotHereError, Packages


@pytest.fixture
def installed() -> Packages:
    try:
        return suite.packages()
    except NotHereError as error:
        pytest.skip(f"not here: {error}")


def test_every_scenario_that_is_named_is_one_of_the_suite(installed: Packages) -> None:
    known = {
        each.name
        for revision in suite.REVISIONS
        for each in suite.requirements(installed, revision)
    }
    assert {*verdicts.CAPABILITIES, *verdicts.TOOLS} <= known


@pytest.mark.slow
@pytest.mark.jail
@pytest.mark.alone
async def test_results_are_those_in_docs_data(installed: Packages) -> None:
    with tempfile.TemporaryDirectory(prefix="nsm-mcp-", dir="/tmp") as directory:
        results = await campaign(installed, Path(directory), print)
    assert page.failures(results) == []
    assert results == page.read()
