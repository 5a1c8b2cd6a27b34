"""E2B's own clients for JavaScript, unchanged, and `nsm e2b serve`."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from e2b_serving import serving

PACKAGES = Path(sys.prefix) / "npm"
"""Directory in which tools/integrations.py has npm install the packages."""

PATIENCE_S = 600.0

SCRIPT = Path(__file__).with_name("client.mjs")
PARTS = [
    *("code", "contexts", "commands", "terminal", "files", "watch", "a huge file", "list", "end")
]


@pytest.mark.skipif(
    not (PACKAGES / "node_modules").exists(),
    reason="not here: Node 20 or newer and npm, or E2B's packages for JavaScript",
)
def test_all_parts() -> None:
    # From standard input, Node looks for packages where it was started.
    with serving("--env", "science") as (_, variables), SCRIPT.open("rb") as script:
        done = subprocess.run(
            ["node", "--input-type=module", "-"],
            stdin=script,
            capture_output=True,
            text=True,
            cwd=PACKAGES,
            env=os.environ | variables,
            timeout=PATIENCE_S,
            check=False,
        )
    assert done.returncode == 0, (done.stdout, done.stderr)
    assert done.stdout.splitlines() == PARTS
