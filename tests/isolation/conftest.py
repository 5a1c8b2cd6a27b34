"""What the probes' tests share: what is on the host, what is installed, a loop beside them."""

from __future__ import annotations

from collections.abc import Generator

import pytest

from isolation.background import Background
from isolation.harness import Probe
from isolation.stage import CANARY, CANARY_VARIABLE, Stage, open_stage
from nsmd.values import Environment
from realjail import environments


@pytest.fixture(scope="module")
def untouched() -> Generator[Stage, None, None]:
    """For probes that must not succeed."""
    with open_stage() as made:
        yield made


@pytest.fixture(scope="module")
def spoilt() -> Generator[Stage, None, None]:
    """For probes that succeed, which changes it."""
    with open_stage() as made:
        yield made


@pytest.fixture(scope="module")
def known() -> dict[str, Environment]:
    return environments()


@pytest.fixture(scope="module")
def background() -> Generator[Background, None, None]:
    made = Background()
    try:
        yield made
    finally:
        made.close()


@pytest.fixture
def environment(probe: Probe, untouched: Stage, known: dict[str, Environment]) -> Environment:
    """What a probe runs in."""
    if not getattr(untouched, probe.needs):
        pytest.skip(f"not here: {probe.needs} on the host")
    found = known[probe.interpreter]
    if found.problem is not None:
        pytest.skip(f"{probe.interpreter} is missing: {found.problem}")
    return found


@pytest.fixture
def secret_in_our_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(CANARY_VARIABLE, CANARY)
