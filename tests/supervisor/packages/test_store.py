"""The store of environments: names, and what is removed."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from nsmd.packages.store import DETAILS, EnvironmentStore
from package_world import published

NAME = "a" * 64


@pytest.mark.parametrize("left", ['{"trunc', None], ids=["cut off", "missing"])
def test_an_environment_that_cannot_be_read_is_replaced(tmp_path: Path, left: str | None) -> None:
    store = EnvironmentStore(str(tmp_path))
    details = Path(published(store, NAME), DETAILS)
    details.unlink()
    if left is not None:
        details.write_text(left)
    assert not store.claim(store.path(NAME))
    published(store, NAME)
    assert store.claim(store.path(NAME))
    store.collect([store.path(NAME)], dry_run=False)
    assert [name for name in os.listdir(tmp_path) if name != ".builds"] == [NAME]


@pytest.mark.parametrize("found", [False, True])
def test_a_collection_keeps_what_a_running_build_has_found(tmp_path: Path, *, found: bool) -> None:
    store = EnvironmentStore(str(tmp_path))
    path = published(store, NAME)
    os.utime(path, times=(0, 0))
    began_s = time.time() - 1  # file systems' clocks are some milliseconds behind
    assert not found or store.claim(path)
    gone = store.collect((), since_s=began_s, dry_run=False).paths
    assert gone == (() if found else (path,))
    assert store.names() == ([NAME] if found else [])
