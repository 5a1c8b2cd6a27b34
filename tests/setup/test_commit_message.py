"""tools/commit_message.py, and the hook that runs it."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

import commit_message

TOOLS = Path(__file__).resolve().parents[2] / "tools"

GOOD = "http: send no body in HEAD responses"


@pytest.mark.parametrize(
    ("subject", "said"),
    [
        (GOOD, ""),
        ("tests, types: mend what pyright finds", ""),
        ("Merge branch 'main'", ""),
        ("# a comment\n" + GOOD, ""),
        ("http: " + "x" * 67, "73 characters"),
        ("http: " + "x" * 66, ""),
        ("send no body in HEAD responses", "names no area"),
        ("http: Sent no body.", "ends with a dot"),
        ("http: fixed HEAD", "no imperative"),
        ("http: what answers HEAD has no body", "no imperative"),
    ],
)
def test_subjects(subject: str, said: str) -> None:
    found = commit_message.problem(f"{subject}\n\nThe body may say anything.\n")
    assert said in found
    assert bool(said) is bool(found)


def test_git_runs_the_hook(tmp_path: Path) -> None:
    if shutil.which("git") is None:
        pytest.skip("not here: no git")
    shutil.copytree(TOOLS / "hooks", tmp_path / "tools/hooks")
    shutil.copy(TOOLS / "commit_message.py", tmp_path / "tools")

    def git(*arguments: str) -> subprocess.CompletedProcess[str]:
        settings = ("-c", "user.name=Ada", "-c", "user.email=ada@example.org")
        return subprocess.run(
            ["git", *settings, *arguments],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=False,
        )

    git("init", "-q")
    git("config", "core.hooksPath", "tools/hooks")
    refused = git("commit", "--allow-empty", "-m", "What answers HEAD has no body")
    assert refused.returncode == 1
    assert "names no area" in refused.stderr
    assert git("commit", "--allow-empty", "-m", GOOD).returncode == 0
