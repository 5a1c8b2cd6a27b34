"""A directory for supervisors of this folder's tests."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from fake_cgroups import FakeTree, Programs

if TYPE_CHECKING:
    from collections.abc import Generator


@pytest.fixture
def short_dir() -> Generator[Path]:
    """A private directory with a short path: pytest's are too long for a socket's."""
    with tempfile.TemporaryDirectory(prefix="nsm-") as path:
        yield Path(path)


@pytest.fixture
def fake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeTree:
    return FakeTree(tmp_path, monkeypatch)


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Programs:
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.defpath}")
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    return Programs(tmp_path)
