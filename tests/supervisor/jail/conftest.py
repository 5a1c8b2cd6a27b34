"""Environments of this machine's interpreters."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from realjail import environments

if TYPE_CHECKING:
    from nsmd.model.values import Environment


@pytest.fixture(scope="session")
def found() -> dict[str, Environment]:
    return environments()


@pytest.fixture
def python(found: dict[str, Environment]) -> Environment:
    return found["python"]


@pytest.fixture
def bash(found: dict[str, Environment]) -> Environment:
    return found["bash"]
