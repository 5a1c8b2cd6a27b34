"""Environments of this machine's interpreters, and a directory."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from realjail import environments, open_directory

if TYPE_CHECKING:
    from collections.abc import Generator
    from pathlib import Path

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


@pytest.fixture
def folder() -> Generator[Path]:
    """A directory that the jails' user may enter."""
    with open_directory() as made:
        yield made
