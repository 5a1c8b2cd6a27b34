"""The machine that is tested in; where it cannot be had, its tests are skipped with the reason."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

import guestimage
from vm.machines import Person, person

if TYPE_CHECKING:
    from collections.abc import Generator


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.parent.name == "vm":
            item.add_marker(pytest.mark.vm)


@pytest.fixture(scope="session")
def image() -> guestimage.Image:
    """Image that machines are booted from."""
    try:
        return guestimage.image()
    except guestimage.CannotBuildError as error:
        pytest.skip(f"not here: no test machine: {error}")


@pytest.fixture(scope="module")
def ada(image: guestimage.Image) -> Generator[Person]:
    """An ordinary user with lingering, in a machine that the module's tests share."""
    with person(image, "ada") as it:
        yield it


@pytest.fixture(scope="module")
def bob(image: guestimage.Image) -> Generator[Person]:
    """An ordinary user without lingering."""
    with person(image, "bob") as it:
        yield it


@pytest.fixture(scope="module")
def root(image: guestimage.Image) -> Generator[Person]:
    """Root."""
    with person(image, "root") as it:
        yield it
