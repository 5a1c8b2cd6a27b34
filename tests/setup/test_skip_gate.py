"""tests/conftest.py: a skip in CI fails the run unless the machine is the reason."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

CONFTEST = Path(__file__).resolve().parent.parent / "conftest.py"


def outcome(directory: Path, body: str, *, ci: bool) -> tuple[int, str]:
    """Exit code and output of pytest over one test file beside our conftest."""
    shutil.copy(CONFTEST, directory)
    (directory / "test_it.py").write_text(f"import pytest\n{body}\n")
    environment = {key: value for key, value in os.environ.items() if key != "CI"}
    environment.pop("PYTEST_ADDOPTS", None)
    if ci:
        environment["CI"] = "true"
    command = [sys.executable, "-P", "-m", "pytest", "-q", "-p", "no:cacheprovider"]
    command += ["-p", "no:trio", "-p", "no:hypothesispytest", "--rootdir", str(directory), "."]
    done = subprocess.run(
        command, cwd=directory, env=environment, capture_output=True, text=True, check=False
    )
    return done.returncode, done.stdout


SKIPS = 'def test_a(): pytest.skip("bwrap is missing")'
SKIPS_MODULE = 'pytest.skip("node is missing", allow_module_level=True)'


@pytest.mark.parametrize(
    ("body", "ci", "expected"),
    [
        pytest.param(SKIPS, True, 1, id="a skip in CI fails"),
        pytest.param(SKIPS, False, 0, id="elsewhere it does not"),
        pytest.param('def test_a(): pytest.skip("not here: no cgroups")', True, 0, id="excused"),
        pytest.param(
            '@pytest.mark.xfail(reason="later")\ndef test_a(): assert False',
            True,
            0,
            id="an expected failure is no skip",
        ),
        pytest.param("def test_a(): assert False", True, 1, id="a failure stays one"),
    ],
)
def test_exit_code(tmp_path: Path, body: str, ci: bool, expected: int) -> None:
    code, output = outcome(tmp_path, body, ci=ci)
    assert code == expected, output


def test_names_what_was_skipped(tmp_path: Path) -> None:
    code, output = outcome(tmp_path, f"{SKIPS_MODULE}\ndef test_a(): pass", ci=True)
    assert code != 0
    assert "test_it.py: node is missing" in output
