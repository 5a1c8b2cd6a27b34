"""The store of environments: what is removed, and files that environments share."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from nsmd.packages.sharing import share_files
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


LIBRARY = "lib/python3.11/site-packages"
TAG = "cpython-311"


class Two:
    """An environment of the store, and a new one that has a release of it."""

    def __init__(self, directory: Path) -> None:
        self.store = EnvironmentStore(str(directory))
        self.old, self.new = directory / ("0" * 64), directory / "new"
        for each in (self.old, self.new):
            (each / LIBRARY / "demo-1.0.dist-info").mkdir(parents=True)

    def write(self, root: Path, name: str, data: str) -> Path:
        path = root / LIBRARY / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(data)
        return path

    def share(self) -> list[str]:
        return share_files(self.store, str(self.new), LIBRARY, TAG)


@pytest.fixture
def two(tmp_path: Path) -> Two:
    return Two(tmp_path)


@pytest.mark.parametrize("linked", [False, True], ids=["equal", "the same"])
def test_an_equal_source_is_shared_with_its_compiled_module(two: Two, *, linked: bool) -> None:
    there = two.write(two.old, "demo.py", "1")
    two.write(two.old, f"__pycache__/demo.{TAG}.pyc", "compiled")
    here = two.write(two.new, "demo.py", "1")
    if linked:
        here.unlink()
        os.link(there, here)
    assert two.share() == []
    assert os.path.samefile(there, here)
    assert (two.new / LIBRARY / f"__pycache__/demo.{TAG}.pyc").read_text() == "compiled"


def test_another_source_of_the_same_size_is_left_to_compile(two: Two) -> None:
    two.write(two.old, "demo.py", "1")
    two.write(two.old, f"__pycache__/demo.{TAG}.pyc", "compiled")
    here = two.write(two.new, "demo.py", "2")
    brought = two.write(two.new, f"__pycache__/demo.{TAG}.pyc", "hostile")
    assert two.share() == [f"{LIBRARY}/demo.py"]
    assert here.read_text() == "2"
    assert not brought.exists()


def test_nothing_is_shared_through_links(two: Two, tmp_path: Path) -> None:
    two.write(two.old, "inside/demo.py", "1")
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "demo.py").write_text("1")
    (two.new / LIBRARY / "inside").symlink_to(elsewhere)
    for root in (two.old, two.new):
        (root / LIBRARY / "link.py").symlink_to(elsewhere / "demo.py")
    assert two.share() == [f"{LIBRARY}/link.py"]
    assert (elsewhere / "demo.py").stat().st_nlink == 1


def test_compiled_modules_of_conda_are_not_taken_over(two: Two) -> None:
    (two.old / "conda-meta").mkdir()
    for root in (two.old, two.new):
        two.write(root, "demo.py", "1")
    two.write(two.old, f"__pycache__/demo.{TAG}.pyc", "of a package")
    assert two.share() == [f"{LIBRARY}/demo.py"]
    assert not (two.new / LIBRARY / "__pycache__").exists()
