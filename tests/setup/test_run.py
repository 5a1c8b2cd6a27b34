"""Checks that fail a whole run: `rungates` and `runworkers`, in one process and with workers."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from textwrap import dedent
from types import SimpleNamespace
from typing import cast

import pytest

import rungates

TESTS = Path(__file__).resolve().parent.parent

CONFTEST = """
import runworkers
pytest_configure = runworkers.join_run
"""
"""Part of tests/conftest.py, without the slow imports."""

IN_ONE = ()
BY_WORKERS = ("-p", "xdist", "-n", "2")
EITHER_WAY = [pytest.param(IN_ONE, marks=pytest.mark.slow), BY_WORKERS]


class Clone:
    """A directory with a few test files that are run as ours are."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        (directory / "pytest.ini").write_text("[pytest]\nmarkers = slow\n")
        self.write(conftest=CONFTEST)

    def write(self, **files: str) -> None:
        """Put modules there, by name."""
        for name, text in files.items():
            (self.directory / f"{name}.py").write_text(dedent(text))

    def run(self, *options: str, ci: bool = False, again: bool = False) -> tuple[int, str]:
        """Exit code and output of pytest; `again` runs failed tests again."""
        environment = {key: value for key, value in os.environ.items() if key != "CI"}
        environment.pop("PYTEST_ADDOPTS", None)
        environment["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"
        environment["PYTHONPATH"] = os.pathsep.join(
            [str(self.directory), str(TESTS / "support"), str(TESTS.parent / "tools")]
        )
        if ci:
            environment["CI"] = "true"
        if again:
            environment[rungates.AGAIN_VARIABLE] = "true"
        command = [sys.executable, "-P", "-m", "pytest", "-q", "-p", "no:cacheprovider"]
        done = subprocess.run(
            [*command, "--rootdir", str(self.directory), *options, "."],
            cwd=self.directory,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )
        return done.returncode, done.stdout + done.stderr


@pytest.fixture
def clone(tmp_path: Path) -> Clone:
    return Clone(tmp_path)


EXCUSED = """
    import pytest
    def test_excused(): pytest.skip("not here: no cgroups")
    @pytest.mark.xfail(reason="later")
    def test_fails_as_expected(): assert False
"""

REFUSED = """
    import pytest
    def test_refused(): pytest.skip("bwrap is missing")
"""

REFUSED_MODULE = """
    import pytest
    pytest.skip("node is missing", allow_module_level=True)
    def test_never(): pass
"""

FAILING = """
    import pytest
    def test_fails(): assert 1 == 2, "the sum"
    def test_later(): pass
"""

LEAVES = """
    import os, subprocess
    def test_leaves():
        left = subprocess.Popen(["sleep", "1000"], start_new_session=True)
        left.returncode = 0  # or its end is told to be missed
        while not open(f"/proc/{left.pid}/environ").read(): pass  # it is empty amid execve(2)
        with open("pid", "w") as file: print(left.pid, file=file)
"""

NO_GRACE = "import rungates; rungates.LEFTOVER_GRACE_S = 0"


@pytest.mark.parametrize("how", EITHER_WAY)
def test_failures_refused_skips_and_left_processes_are_told_in_ci(
    clone: Clone, how: tuple[str, ...]
) -> None:
    clone.write(test_excused=EXCUSED, test_refused=REFUSED, test_module=REFUSED_MODULE)
    clone.write(test_fails=FAILING, test_leaves=LEAVES, no_grace=NO_GRACE)
    code, output = clone.run("-p", "no_grace", *how, ci=True)
    left_pid = int((clone.directory / "pid").read_text())
    os.kill(left_pid, signal.SIGKILL)
    assert code == pytest.ExitCode.TESTS_FAILED
    failed = "FAILED test_fails.py::test_fails - AssertionError: the sum"
    assert failed in output.partition("= FAILURES =")[0], "when it happens"
    skipped = output.partition("= skipped in CI =")[2].splitlines()[1:4]
    assert sorted(line for line in skipped if "not here:" not in line) == [
        "test_module.py: node is missing",
        "test_refused.py::test_refused: bwrap is missing",
    ]
    left = output.partition("= processes left behind =")[2].splitlines()
    assert f"{left_pid}: sleep 1000 " in left, output


FAILS_ONCE = """
    import os, pytest
    @pytest.mark.slow
    def test_fails_once():
        try: os.mkdir("ran")
        except FileExistsError: return
        assert 1 == 2, "the first time"
"""

FAILS_ALWAYS = """
    import pytest
    @pytest.mark.slow
    def test_fails(): assert 1 == 2, "the sum"
"""


@pytest.mark.parametrize("how", EITHER_WAY)
def test_a_failure_that_does_not_repeat_is_named_and_passes(
    clone: Clone, how: tuple[str, ...]
) -> None:
    clone.write(test_it=FAILS_ONCE)
    code, output = clone.run(*how, "-m", "slow", again=True)
    assert code == pytest.ExitCode.OK, output
    flaky = output.partition("FLAKY test_it.py::test_fails_once")[2]
    assert "AssertionError: the first time" in flaky, output


@pytest.mark.slow
@pytest.mark.parametrize("other", [FAILS_ALWAYS, REFUSED])
def test_a_failure_that_repeats_or_a_refused_skip_fails_beside_a_flaky_one(
    clone: Clone, other: str
) -> None:
    clone.write(test_it=FAILS_ONCE, test_other=other)
    code, output = clone.run("-m", "slow or not slow", again=True, ci=True)
    assert code == pytest.ExitCode.TESTS_FAILED, output
    if other is FAILS_ALWAYS:
        assert "= failed again, alone: test_other.py::test_fails =" in output
    else:
        assert "FLAKY test_it.py::test_fails_once" in output


def test_a_tenth_is_drawn_by_names_and_seed() -> None:
    names = [f"test_it.py::test_it[{number}]" for number in range(1000)]
    items = [cast("pytest.Item", SimpleNamespace(nodeid=name)) for name in names]
    drawn = rungates.drawn(items, 10, "seed")
    assert 50 < len(drawn) < 200
    assert rungates.drawn(items[::-1], 10, "seed") == drawn[::-1]
    assert rungates.drawn(items, 10, "other") != drawn


def test_smoke_runs_tests_that_exist() -> None:
    """`make smoke` would stop at a folder that has moved."""
    makefile = (TESTS.parent / "Makefile").read_text(encoding="utf-8").replace("\\\n", " ")
    words = re.search(r"^SMOKE := \$\(addprefix tests/, (.*)\)$", makefile, re.MULTILINE)
    assert words is not None
    assert [name for name in words[1].split() if not (TESTS / name).exists()] == []
