"""The supervisor that commands ask, made of handlers, and `nsm` in this process."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import pytest

from cli_bench import in_this_process
from fakesupervisor import FakeSupervisor

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from cli_bench import Nsm


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The socket that commands ask at; nothing listens there yet."""
    path = str(tmp_path / "control.sock")
    monkeypatch.setenv("NSM_SOCKET", path)
    monkeypatch.setenv("HOME", str(tmp_path))
    return path


@pytest.fixture
def supervisor(path: str) -> Iterator[FakeSupervisor]:
    with FakeSupervisor(path) as supervisor:
        yield supervisor


@pytest.fixture
def nsm(path: str, capfdbinary: pytest.CaptureFixture[bytes]) -> Nsm:
    """Run a command and return what it said; it asks at `path`."""
    return partial(in_this_process, capfdbinary)
