"""One real supervisor for the tests of this folder that only use it."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from e2e_support import Supervisor, detached_supervisor

if TYPE_CHECKING:
    from collections.abc import Generator

    from nsm import Client


@pytest.fixture
def short_dir() -> Generator[Path]:
    """A private directory with a short path: pytest's are too long for a socket's."""
    with tempfile.TemporaryDirectory(prefix="nsm-") as path:
        yield Path(path)


@pytest.fixture(scope="session")
def lasting() -> Generator[Supervisor]:
    """A supervisor for the files of a worker."""
    with tempfile.TemporaryDirectory(prefix="nsm-") as path, detached_supervisor(Path(path)) as it:
        yield it


@pytest.fixture(scope="session")
def undoing() -> Generator[Supervisor]:
    """A supervisor that keeps earlier states of sessions; tests end theirs."""
    config = "[session]\nundo = 5\n"
    with (
        tempfile.TemporaryDirectory(prefix="nsm-") as path,
        detached_supervisor(Path(path), config=config) as it,
    ):
        yield it


@pytest.fixture
def no_autostart(monkeypatch: pytest.MonkeyPatch) -> None:
    """The next supervisor is the test's: no client is to be faster."""
    monkeypatch.setenv("NSM_AUTOSTART", "0")


@pytest.fixture
def project() -> Generator[Path]:
    """A directory that a jail may show: not below the home directory of a supervisor."""
    with tempfile.TemporaryDirectory(prefix="nsm-project-") as path:
        Path(path).chmod(0o755)
        yield Path(path)


@pytest.fixture(scope="module")
def shared(lasting: Supervisor) -> Generator[Supervisor]:
    """The same one, without sessions of other files; tests leave it as they found it."""
    yield lasting
    with lasting.client() as client:
        client.kill_all()


@pytest.fixture
def client(shared: Supervisor) -> Generator[Client]:
    """A client of it; its sessions end with the test."""
    with shared.client() as made:
        yield made
        made.kill_all()


@pytest.fixture
def emptied(shared: Supervisor) -> Generator[Supervisor]:
    """The supervisor itself; its sessions end with the test."""
    yield shared
    with shared.client() as client:
        client.kill_all()
