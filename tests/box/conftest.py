"""What tests of boxes have: a user's world, and whether boxes can be started here."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from box.world import World, open_world

if TYPE_CHECKING:
    from collections.abc import Generator


@pytest.fixture
def world() -> Generator[World]:
    """A world that the test may change."""
    with open_world() as made:
        yield made


@pytest.fixture(scope="module")
def shared_world() -> Generator[World]:
    """A world that tests of a module look at, and add to under names of their own."""
    with open_world() as made:
        yield made
