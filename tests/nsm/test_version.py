"""The version with the commit of the clone that a program runs from."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import nsm._version

SOURCE = Path(nsm._version.__file__).read_text()
GIT = ("git", "-c", "user.name=a", "-c", "user.email=a@example.org")


def git(directory: Path, *arguments: str) -> str:
    done = subprocess.run(
        [*GIT, *arguments], cwd=directory, capture_output=True, text=True, check=True
    )
    return done.stdout.strip()


def said_in(clone: Path) -> str:
    """Version that a program says which runs from `clone`."""
    (clone / "clients" / "nsm").mkdir(parents=True, exist_ok=True)
    module = clone / "clients" / "nsm" / "_version.py"
    module.write_text(f"{SOURCE}\nprint(program_version())\n")
    done = subprocess.run([sys.executable, module], capture_output=True, text=True, check=True)
    return done.stdout.strip()


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    clone = tmp_path / "clone"
    clone.mkdir()
    git(clone, "init", "--quiet")
    git(clone, "commit", "--quiet", "--allow-empty", "--message", "one")
    return clone


def test_a_clone_has_its_commit(clone: Path) -> None:
    known = f"{nsm._version.__version__}+{git(clone, 'rev-parse', 'HEAD')[:8]}"
    assert said_in(clone) == known
    git(clone, "pack-refs", "--all")
    assert said_in(clone) == known
    git(clone, "checkout", "--quiet", "--detach")
    assert said_in(clone) == known


def test_a_further_work_tree_has_its_own(clone: Path) -> None:
    other = clone.parent / "other"
    git(clone, "worktree", "add", "--quiet", "-b", "topic", str(other))
    git(other, "commit", "--quiet", "--allow-empty", "--message", "two")
    assert said_in(other).endswith(f"+{git(other, 'rev-parse', 'HEAD')[:8]}")


@pytest.mark.parametrize("head", [None, "", "ref: refs/heads/none", "\x00\xff", "../../../etc/x"])
def test_without_a_commit_it_is_the_version_alone(clone: Path, head: str | None) -> None:
    place = clone / ".git" / "HEAD"
    if head is None:
        place.unlink()
    else:
        place.write_bytes(head.encode("latin-1"))
    assert said_in(clone) == nsm._version.__version__
