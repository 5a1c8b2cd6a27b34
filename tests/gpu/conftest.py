"""A real GPU and a Python with torch; without them, the tests here are skipped with the reason."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from e2e_support import Supervisor, supervisor

if TYPE_CHECKING:
    from collections.abc import Generator

TORCH = "NSM_TEST_TORCH"
"""Variable with the path of a Python that has torch."""

CONFIG = """
[defaults]
timeout_seconds = 300
memory_mb = 8192
shm_mb = 512
[environments.ml]
preset = "python"
interpreter = {python!r}
preload = ["torch"]
devices = ["nvidia"]
[environments.slow]
preset = "python"
interpreter = {python!r}
devices = ["nvidia"]
[environments.none]
preset = "python"
interpreter = {python!r}
"""
"""`slow`: what `ml` is without a template that has imported torch."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.parent.name == "gpu":
            item.add_marker(pytest.mark.gpu)


@pytest.fixture(scope="session")
def python() -> str:
    """A Python that has torch."""
    if not os.path.exists("/dev/nvidiactl"):
        pytest.skip("not here: no NVIDIA GPU (/dev/nvidiactl)")
    named = os.environ.get(TORCH)
    for program in [named] if named else [shutil.which("python3"), "/opt/torch/bin/python3"]:
        if program and not subprocess.run([program, "-c", "import torch"], check=False).returncode:
            return program
    pytest.skip(f"not here: no Python with torch; name one in {TORCH}")


@pytest.fixture(scope="module")
def it(python: str) -> Generator[Supervisor]:
    """A supervisor with environments of that GPU."""
    with tempfile.TemporaryDirectory(prefix="nsm-") as directory:
        config = CONFIG.format(python=python)
        with supervisor(Path(directory), config=config) as running:
            yield running
