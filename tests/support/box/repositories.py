"""Repositories in a test's own directory, made by the real git of a user without configuration."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

from nsmbox.protection import git_repository, secrets

if TYPE_CHECKING:
    from nsmbox.protection.git_repository import GitFacts

GIT = shutil.which("git", path="/usr/local/bin:/usr/bin:/bin") or "git"


def variables(home: Path) -> dict[str, str]:
    """Environment variables of a user with that home directory."""
    return {"HOME": str(home), "GIT_CONFIG_NOSYSTEM": "1", "PATH": "/usr/bin:/bin"}


def git(directory: Path, *arguments: str, home: Path | None = None) -> str:
    """Run git as the host's user would; what it prints."""
    done = subprocess.run(
        [GIT, "-c", "protocol.file.allow=always", *arguments],
        cwd=directory,
        env=variables(home or directory.parent / "home"),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def repository(directory: Path) -> Path:
    """Make one with a commit in it."""
    directory.mkdir(parents=True)
    git(directory, "init", "-q", "-b", "main")
    commit(directory)
    return directory


def commit(directory: Path) -> None:
    """Add a commit."""
    who = ("-c", "user.name=Ada", "-c", "user.email=ada@example.org")
    git(directory, *who, "commit", "-q", "--allow-empty", "-m", "one")


def look(directory: Path, home: Path | None = None) -> GitFacts:
    """Collect the facts about git in a working directory."""
    told = variables(home or directory.parent / "home")
    known = secrets.look(told["HOME"], told, os.geteuid(), directory=str(directory))
    return git_repository.look(str(directory), known, GIT, told)
