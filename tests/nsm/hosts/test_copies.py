"""Copies of a project, on the machine that has it."""

from __future__ import annotations

import subprocess
from typing import TYPE_CHECKING

import pytest

from nsm.hosts import copies

if TYPE_CHECKING:
    from pathlib import Path


def git(project: Path, *arguments: str) -> None:
    me = ("-c", "user.name=me", "-c", "user.email=me@example.org")
    subprocess.run(["git", "-C", str(project), *me, *arguments], check=True, capture_output=True)


@pytest.fixture
def project(tmp_path: Path) -> Path:
    made = tmp_path / "project"
    made.mkdir()
    git(made, "init", "--quiet")
    (made / "a").write_text("1")
    git(made, "add", "a")
    git(made, "commit", "--quiet", "-m", "one")
    return made


def test_a_project_cannot_run_programs_while_it_is_listed(project: Path, tmp_path: Path) -> None:
    proof = tmp_path / "proof"
    git(project, "config", "core.fsmonitor", f"touch '{proof}'; false")
    git(project, "ls-files", "--others")
    assert proof.exists(), "this git would run it"
    proof.unlink()
    assert copies._files(str(project)) == ["a"]  # pyright: ignore[reportPrivateUsage]
    assert not proof.exists()
