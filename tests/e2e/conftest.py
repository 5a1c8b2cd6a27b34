"""One real supervisor for the tests of this folder that only use it."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from e2e_support import Supervisor, supervisor

if TYPE_CHECKING:
    from collections.abc import Generator

    from nsm import Client


@pytest.fixture
def short_dir() -> Generator[Path]:
    """A private directory with a short path: pytest's are too long for a socket's."""
    with tempfile.TemporaryDirectory(prefix="nsm-") as path:
        yield Path(path)


@pytest.fixture(scope="module")
def shared() -> Generator[Supervisor]:
    """A supervisor for the module; tests leave it as they found it."""
    with tempfile.TemporaryDirectory(prefix="nsm-") as path, supervisor(Path(path)) as it:
        yield it


@pytest.fixture
def client(shared: Supervisor) -> Generator[Client]:
    """A client of it; its sessions end with the test."""
    with shared.client() as made:
        yield made
        made.kill_all()
