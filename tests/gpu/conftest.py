"""A real GPU and a Python with torch; without them, the tests here are skipped with the reason."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from contextlib import contextmanager
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
[pool]
max_spares = 0
[environments.fork]
preset = "python"
interpreter = "{python}"
preload = ["torch"]
{devices}
[environments.start]
preset = "python"
interpreter = "{python}"
{devices}
[environments.none]
preset = "python"
interpreter = "{python}"
"""
"""`start`: what `fork` is without a template that has imported torch. No session is kept ready."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.parent.name == "gpu":
            item.add_marker(pytest.mark.gpu)


@pytest.fixture(scope="session")
def python() -> str:
    """A Python that has torch."""
    named = os.environ.get(TORCH) or shutil.which("python3")
    if named is None or subprocess.run([named, "-c", "import torch"], check=False).returncode:
        pytest.skip(f"not here: no Python with torch; name one in {TORCH}")
    return named


@pytest.fixture(scope="session")
def gpu() -> str:
    """NVIDIA's GPUs, as `devices` names them."""
    if not os.path.exists("/dev/nvidiactl"):
        pytest.skip("not here: no NVIDIA GPU (/dev/nvidiactl)")
    return "nvidia"


@contextmanager
def _running(python: str, devices: str) -> Generator[Supervisor]:
    with tempfile.TemporaryDirectory(prefix="nsm-") as directory:
        config = CONFIG.format(python=python, devices=devices)
        with supervisor(Path(directory), config=config) as running:
            yield running


@pytest.fixture(scope="module")
def on_processor(python: str) -> Generator[Supervisor]:
    """A supervisor whose environments have torch and no GPU."""
    with _running(python, "") as running:
        yield running


@pytest.fixture(scope="module")
def on_gpu(gpu: str, python: str) -> Generator[Supervisor]:
    """A supervisor whose environments have torch and the GPUs."""
    with _running(python, f'devices = ["{gpu}"]') as running:
        yield running
