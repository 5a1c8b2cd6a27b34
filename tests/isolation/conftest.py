"""Shared fixtures of the probes: what is on the host, what is installed, a loop beside them."""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import ExitStack
from functools import cache

import pytest

from isolation.background import Background
from isolation.rooms import Prober
from isolation.stage import CANARY, CANARY_VARIABLE, HIDDEN, HIDDEN_VARIABLE, Stage, open_stage
from nsmd.model.values import Environment
from realjail import environments


@pytest.fixture(scope="module")
def untouched() -> Generator[Stage, None, None]:
    """Stage for probes that must not succeed."""
    with open_stage() as made:
        yield made


@pytest.fixture(scope="module")
def spoilt_stages() -> Generator[Callable[[str], Stage], None, None]:
    with ExitStack() as stack:
        yield cache(lambda _kind: stack.enter_context(open_stage()))


@pytest.fixture
def spoilt(request: pytest.FixtureRequest, spoilt_stages: Callable[[str], Stage]) -> Stage:
    """Stage for probes that succeed, which changes it: a probe succeeds once, in each kind."""
    return spoilt_stages(request.node.callspec.params["kind"])


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


@pytest.fixture(scope="module")
def prober(background: Background) -> Prober:
    return Prober(background)


@pytest.fixture(scope="module")
def secret_in_our_environment() -> Generator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(CANARY_VARIABLE, CANARY)
        patch.setenv(HIDDEN_VARIABLE, HIDDEN)
        yield
