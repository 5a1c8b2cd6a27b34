"""Agents as fixtures: bare for our own code, jailed for hostile code."""

from __future__ import annotations

from collections.abc import Generator
from pathlib import Path

import pytest

from agent_process import AgentProcess, direct_agent, jailed_agent
from realjail import BWRAP


@pytest.fixture
def agent(tmp_path: Path) -> Generator[AgentProcess]:
    """A fresh agent without a jail."""
    with direct_agent(tmp_path) as process:
        yield process


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Generator[AgentProcess]:
    """One agent for all cases of a module; each must leave it usable, which is tested too."""
    with direct_agent(tmp_path_factory.mktemp("workspace")) as process:
        yield process


@pytest.fixture
def jailed() -> Generator[AgentProcess]:
    """A fresh agent as PID 1 of a throw-away jail."""
    if BWRAP is None:
        pytest.skip("bubblewrap is missing: `make setup` installs it")
    with jailed_agent() as process:
        yield process


@pytest.fixture(scope="module")
def shared_jailed() -> Generator[AgentProcess]:
    """One such agent for all cases of a module that leave it usable."""
    if BWRAP is None:
        pytest.skip("bubblewrap is missing: `make setup` installs it")
    with jailed_agent() as process:
        yield process
