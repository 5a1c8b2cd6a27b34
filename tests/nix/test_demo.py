"""`make nix-demo`: a user's flake is built beside a connected client, which runs code in it."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import standin

if TYPE_CHECKING:
    from collections.abc import Generator

pytestmark = pytest.mark.jail

DEMO = standin.ROOT / "tools/nix_demo.py"


@pytest.fixture
def scratch() -> Generator[Path]:
    """Directory for the demonstration; it has to be empty afterwards."""
    with tempfile.TemporaryDirectory(prefix="nsm-") as path:
        yield Path(path)
        assert os.listdir(path) == []


def demo(scratch: Path, path: str) -> subprocess.CompletedProcess[str]:
    variables = {"PATH": path, "HOME": os.environ.get("HOME", "/"), "TMPDIR": str(scratch)}
    return subprocess.run(
        [sys.executable, str(DEMO)],
        env=variables,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


@pytest.mark.slow
def test_a_client_runs_code_in_what_was_built_meanwhile(
    place: standin.Place, scratch: Path
) -> None:
    done = demo(scratch, os.environ["PATH"])
    assert (done.returncode, done.stderr) == (0, ""), done.stdout + done.stderr
    heard = re.findall(r"^  - data-science: (.*)$", done.stdout, re.MULTILINE)
    assert [line.partition(";")[0] for line in heard] == ["Python with PyYAML, and jq"]
    before, _, after = done.stdout.partition("- data-science: ")
    assert "is built\n" in before
    said = dict(re.findall(r"^  (\S.*?) +\d+ ms  (.*)$", after, re.MULTILINE))
    assert said["its Python"].startswith(str(place.store))
    assert said["its packages"] == "yaml"
    assert said["state is kept"] == "42"
    assert "usr" not in said["no /usr in the jail"].split()
    assert said["no network"] == "lo"


@pytest.mark.slow
def test_without_nix_it_says_what_to_install(scratch: Path) -> None:
    done = demo(scratch, "/nowhere")
    assert done.returncode == 1
    assert "install it (Debian: apt-get install nix-bin)" in done.stderr
