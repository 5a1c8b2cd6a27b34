"""Artifacts, built for real and run by hand: what is in their jails, and what is not."""

from __future__ import annotations

import subprocess
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

pytestmark = pytest.mark.jail


def run(artifact: Path, code: str) -> subprocess.CompletedProcess[str]:
    """One execution by `bin/run`, with nothing of the caller's environment."""
    return subprocess.run(
        [str(artifact / "bin/run")],
        input=code,
        env={},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )


@pytest.mark.parametrize(
    ("environment", "code"),
    [
        ("presets.bash", "printf '%s' $((6*7))"),
        ("presets.python", "import yaml; print(yaml.safe_load('42'), end='')"),
        ("presets.node", "process.stdout.write(String(6 * 7))"),
    ],
)
def test_runs_code(built: Callable[[str], Path], environment: str, code: str) -> None:
    done = run(built(environment), code)
    assert (done.stdout, done.stderr, done.returncode) == ("42", "", 0)
