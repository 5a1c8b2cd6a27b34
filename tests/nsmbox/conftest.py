"""Fixtures of box tests: a user's world, and whether boxes can be started here."""

from __future__ import annotations

import compileall
import os
from typing import TYPE_CHECKING

import pytest

import nsm
import nsmbox
import nsmd
from box.world import ADAS_UID, World, open_world

if TYPE_CHECKING:
    from collections.abc import Generator
    from pathlib import Path


@pytest.fixture(scope="session")
def box_tools(run_directory: Path) -> Path:
    """Files that the first box makes for all later ones: two thousand links take half a second."""
    directory = run_directory / "box-tools"
    directory.mkdir(mode=0o700, exist_ok=True)
    if os.getuid() == 0:
        os.chown(directory, ADAS_UID, ADAS_UID)
        # Python keeps what it has compiled beside the source, where she may not write: each of her
        # programs would compile all that it imports.
        for directory_of_modules in (*nsm.__path__, *nsmbox.__path__, *nsmd.__path__):
            compileall.compile_dir(directory_of_modules, quiet=1)
    return directory


@pytest.fixture
def world(box_tools: Path) -> Generator[World]:
    """A world that the test may change."""
    with open_world(box_tools) as made:
        yield made


@pytest.fixture(scope="module")
def shared_world(box_tools: Path) -> Generator[World]:
    """A world that tests of a module look at, and add to under names of their own."""
    with open_world(box_tools) as made:
        yield made
