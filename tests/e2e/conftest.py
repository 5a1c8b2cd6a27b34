"""One real supervisor for the tests of this folder that only use it."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from e2e_support import Supervisor, supervisor

if TYPE_CHECKING:
    from collections.abc import Generator


@pytest.fixture
def short_dir() -> Generator[Path]:
    """A private directory with a short path: pytest's are too long for a socket's."""
    with tempfile.TemporaryDirectory(prefix="nsm-") as path:
        yield Path(path)


@pytest.fixture(scope="session")
def shared_by_all() -> Generator[Supervisor]:
    """A supervisor for all modules that a worker runs."""
    with tempfile.TemporaryDirectory(prefix="nsm-") as path, supervisor(Path(path)) as it:
        yield it


@pytest.fixture(scope="module")
def shared(shared_by_all: Supervisor) -> Generator[Supervisor]:
    """A supervisor without sessions; tests of a module leave it as they found it."""
    yield shared_by_all
    with shared_by_all.client() as client:
        client.kill_all()
