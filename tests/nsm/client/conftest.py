"""A supervisor made of handlers, and a client of it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

import nsm
from fakesupervisor import FakeSupervisor

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def supervisor() -> Iterator[FakeSupervisor]:
    with FakeSupervisor() as supervisor:
        yield supervisor


@pytest.fixture
def client(supervisor: FakeSupervisor) -> Iterator[nsm.Client]:
    with nsm.Client(
        connection=supervisor.connect(), scope="s", name="tests", project=None
    ) as client:
        yield client
