"""Wheel and source archive for people who install nsm without a clone."""

from __future__ import annotations

import configparser
import os
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

from nsm._version import __version__

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with the wheel and the source distribution; nothing is fetched."""
    pytest.importorskip("hatchling")
    directory = tmp_path_factory.mktemp("dist")
    command = [sys.executable, "-m", "hatchling", "build", "--directory", str(directory)]
    done = subprocess.run(
        command,
        cwd=ROOT,
        env={**os.environ, "NSM_COMMIT": "1a2b3c4d" * 5},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return directory


def test_wheel_has_the_packages_and_nothing_else(built: Path) -> None:
    (wheel,) = built.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        tops = {name.split("/")[0] for name in names if ".dist-info/" not in name}
        (entry_points,) = (name for name in names if name.endswith("entry_points.txt"))
        scripts = configparser.ConfigParser()
        scripts.read_string(archive.read(entry_points).decode())
    assert tops == {"nsm", "nsmbox", "nsmd", "sandbox", "sandbox_agent.py", "sandbox_template.py"}
    assert set(scripts["console_scripts"]) == {"nsm", "claudebox", "nsm-mcp", "nsm-supervisor"}
    assert {"nsm/py.typed", "nsmbox/py.typed", "nsmd/py.typed"} <= set(names)
    assert "sandbox/workers/node/main.js" in names
    assert not [name for name in names if "__pycache__" in name]


def test_wheel_works_without_the_clone(built: Path, tmp_path: Path) -> None:
    (wheel,) = built.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path)
    code = "import nsmd.app.main, sandbox_agent, nsm.shim; print(sandbox_agent.__file__)"
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.strip() == str(tmp_path / "sandbox_agent.py")


@pytest.mark.parametrize("place", ["wheel", "source archive"])
def test_a_wheel_and_an_archive_know_their_commit(built: Path, tmp_path: Path, place: str) -> None:
    if place == "wheel":
        with zipfile.ZipFile(next(built.glob("*.whl"))) as archive:
            archive.extractall(tmp_path)
    else:
        # `extractall` needs its filter from Python 3.12 on, and has none before 3.11.4.
        subprocess.run(["tar", "-xzf", next(built.glob("*.tar.gz")), "-C", tmp_path], check=True)
        (clients,) = tmp_path.glob("*/clients")
        tmp_path = clients
    code = "import nsm._version; print(nsm._version.program_version())"
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.strip() == f"{__version__}+{'1a2b3c4d' * 5:.8}"


def test_source_distribution_can_be_built_and_tested(built: Path) -> None:
    (archive,) = built.glob("*.tar.gz")
    with tarfile.open(archive) as file:
        names = {name.partition("/")[2] for name in file.getnames()}
    assert {
        "Makefile",
        "constraints.txt",
        "benchmarks/constraints.txt",
        "tools/setup.sh",
        "tests/conftest.py",
        "docs/reference/control-socket.md",
        "agent/sandbox_agent.py",
        "agent/sandbox/workers/node/main.js",
        "LICENSE",
    } <= names
