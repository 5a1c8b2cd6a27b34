"""`make run`: it says what git says, stays in its jail, and leaves nothing behind."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Generator

ROOT = Path(__file__).resolve().parent.parent.parent
DEMO = ROOT / "tools/demo.py"
TIMEOUT_S = 300
"""Time for all of it, which takes seconds, on a machine that runs everything at once."""


@pytest.fixture
def scratch() -> Generator[Path]:
    """Directory for the demonstration; it has to be empty afterwards."""
    with tempfile.TemporaryDirectory(prefix="nsm-") as path:
        yield Path(path)
        assert os.listdir(path) == []


def environment(scratch: Path) -> dict[str, str]:
    """A user's environment, with temporary files in `scratch`."""
    kept = {key: os.environ[key] for key in ("PATH", "HOME") if key in os.environ}
    return {**kept, "TMPDIR": str(scratch), "TERM": "xterm", "LANG": "C.UTF-8"}


def test_the_demonstration_shows_a_repository_as_it_is(scratch: Path) -> None:
    with tempfile.TemporaryDirectory(prefix="nsm-repository-") as repository:
        Path(repository).chmod(0o755)
        ignored = shutil.ignore_patterns("__pycache__")
        for part in ("tools", "docs/explanation"):
            shutil.copytree(ROOT / part, Path(repository, part), ignore=ignored)
        subprocess.run(["git", "init", "-q", repository], check=True)
        done = subprocess.run(
            [sys.executable, str(DEMO), repository],
            env=environment(scratch),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
            check=False,
        )
        assert (done.returncode, done.stderr) == (0, ""), done.stdout
        files = [path.read_text() for path in Path(repository).rglob("*.py")]
        lines = sum(text.count("\n") for text in files)
        said = re.search(r"parse every module +\d+ ms  (\D*)(\d+)\D+([\d,]+)", done.stdout)
        assert said is not None, done.stdout
        assert (int(said[2]), int(said[3].replace(",", ""))) == (len(files), lines)
        assert not Path(repository, "planted").exists()
    assert "Read-only file system" in done.stdout
    assert "\x1b" not in done.stdout
