"""Results of a run as a whole: refused skips, processes left behind, failures that do not repeat.

These are pytest plugins; `join_run` registers them. With several workers they are the main
process's, which sees the reports of all workers and ends after them.
"""

from __future__ import annotations

import os
import random
import select
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

import bootstrap

ALLOWED_REASON = "not here:"

RUN_VARIABLE = "NSM_TEST_RUN"
"""Tells the processes of this run of the tests, wherever they end up."""

COVERAGE_VARIABLE = "COVERAGE_PROCESS_CONFIG"
"""Set by `make coverage`: a Python that starts with it is measured, too."""

AGAIN_VARIABLE = "NSM_TEST_FAILED_AGAIN"
"""Runs failed tests again (`FlakyTests`)."""

LEFTOVER_GRACE_S = 5.0
"""Time for processes to end that the last tests told to end."""


def of_run() -> dict[str, str]:
    """Variables that programs of ours get whose environment is otherwise made for the test."""
    return {
        RUN_VARIABLE: os.environ.get(RUN_VARIABLE, ""),
        **{name: os.environ[name] for name in (COVERAGE_VARIABLE,) if name in os.environ},
    }


def skip_reason(report: pytest.TestReport | pytest.CollectReport) -> str | None:
    """Explain why a test or a module was skipped; None when it was not (an expected failure is
    not)."""
    if not report.skipped or hasattr(report, "wasxfail"):
        return None
    # pytest reports a skip as (file, line, "Skipped: reason").
    text = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
    return text.removeprefix("Skipped: ")


class SkipGate:
    """Skips for want of something that can be installed: told at the end, and refused in CI.

    Args:
        in_ci: such a skip fails the run.
    """

    def __init__(self, *, in_ci: bool) -> None:
        self._in_ci = in_ci
        self.refused: list[str] = []

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._note(report)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        self._note(report)

    def _note(self, report: pytest.TestReport | pytest.CollectReport) -> None:
        reason = skip_reason(report)
        if reason is not None and not reason.startswith(ALLOWED_REASON):
            self.refused.append(f"{report.nodeid}: {reason}")

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if self._in_ci and self.refused and session.exitstatus == pytest.ExitCode.OK:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    @pytest.hookimpl(trylast=True)
    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        if self.refused and not self._in_ci:
            terminalreporter.write_line(
                f"Not run for want of programs: {len(self.refused)} tests. {how_to_install()}",
                yellow=True,
            )
        elif self.refused:
            terminalreporter.section("skipped in CI", sep="=", red=True)
            for line in self.refused:
                terminalreporter.write_line(line)
            terminalreporter.write_line(
                f"A skip in CI needs a reason that begins with {ALLOWED_REASON!r}; what the set-up"
                " installs must be there."
            )


def how_to_install() -> str:
    """The command that installs all programs that tests need and this machine lacks."""
    packages = bootstrap.TEST_PROGRAMS | {"node": "nodejs"}
    lacking = [package for name, package in packages.items() if shutil.which(name) is None]
    if not lacking:
        return "Their reasons are listed above."
    return f"To run them too (Debian, Ubuntu): sudo apt-get install {' '.join(lacking)}"


class EarlyFailures:
    """A line for each failure when it happens; pytest shows failures at the end of the run."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        reporter: pytest.TerminalReporter | None = self._config.pluginmanager.get_plugin(
            "terminalreporter"
        )
        if not report.failed or reporter is None:
            return
        crash = getattr(report.longrepr, "reprcrash", None)
        lines = str(crash.message if crash else report.longreprtext).strip().splitlines()
        reporter.ensure_newline()
        reporter.write_line(f"FAILED {report.nodeid} - {lines[0] if lines else ''}", red=True)


class FlakyTests:
    """Runs each failed test twice more, alone; the run fails only if one of them fails again.

    What passes both times is printed as flaky, with its first failure, to be mended next.

    Args:
        markers: the expression with which pytest chose the tests (`-m`).
    """

    MOST = 5
    """Failed tests that are run again; so many do not fail by chance."""

    TIMES = 2

    def __init__(self, markers: str) -> None:
        self._markers = markers
        self._failures: dict[str, str] = {}
        self._again: dict[str, str] = {}
        self._flaky = False

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self._failures.setdefault(report.nodeid, report.longreprtext)

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if session.exitstatus != pytest.ExitCode.TESTS_FAILED or len(self._failures) > self.MOST:
            return
        for test in self._failures:
            command = [sys.executable, "-P", "-m", "pytest", "-q", "-p", "no:cacheprovider"]
            for _ in range(self.TIMES):
                done = subprocess.run(
                    [*command, "-m", self._markers, test],
                    cwd=session.config.rootpath,
                    env={key: text for key, text in os.environ.items() if key != AGAIN_VARIABLE},
                    capture_output=True,
                    text=True,
                    check=False,
                )
                if done.returncode != pytest.ExitCode.OK:
                    self._again[test] = done.stdout + done.stderr
                    break
        if self._failures and not self._again:
            self._flaky = True
            session.exitstatus = pytest.ExitCode.OK

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        for test, output in self._again.items():
            terminalreporter.section(f"failed again, alone: {test}", sep="=", red=True)
            terminalreporter.write_line(output)
        for test, failure in self._failures.items() if self._flaky else ():
            terminalreporter.write_line(f"FLAKY {test}", yellow=True)
            terminalreporter.write_line(failure)


def drawn(items: list[pytest.Item], one_in: int, seed: str) -> list[pytest.Item]:
    """Draw one in so many tests by their names, so that all workers draw the same ones."""
    return [item for item in items if random.Random(f"{seed} {item.nodeid}").random() * one_in < 1]


class LeftoverGate:
    """Fails a run that leaves processes behind.

    They carry a variable of this run in their environment, which survives every way of detaching;
    jails have an empty one, but each has a supervisor above it that has not. Workers are started
    with the variable, too: one that does not end is a process left behind.

    Attributes:
        run: the variable's value.
    """

    def __init__(self) -> None:
        self.run = f"{os.getpid()}-{time.time_ns()}"
        os.environ[RUN_VARIABLE] = self.run
        self.left: list[str] = []

    # After xdist's, which ends the workers.
    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        deadline = time.monotonic() + LEFTOVER_GRACE_S
        found = self._look()
        while found and (seconds := deadline - time.monotonic()) > 0:
            self._wait_for_end(next(iter(found)), seconds)
            found = self._look()  # those that it left meanwhile, too
        self.left = [f"{pid}: {command}" for pid, command in found.items()]
        if self.left and session.exitstatus == pytest.ExitCode.OK:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        if self.left:
            terminalreporter.section("processes left behind", sep="=", red=True)
            for line in self.left:
                terminalreporter.write_line(line)

    def _look(self) -> dict[int, str]:
        """The commands of the run's processes, by process id."""
        entry = f"{RUN_VARIABLE}={self.run}".encode()
        found: dict[int, str] = {}
        for pid in map(int, filter(str.isdigit, os.listdir("/proc"))):
            if pid == os.getpid():
                continue
            try:
                if entry in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0"):
                    command = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ")
                    found[pid] = command.decode(errors="replace")
            except OSError:
                continue  # gone, or another user's
        return found

    @staticmethod
    def _wait_for_end(pid: int, seconds: float) -> None:
        try:
            fd = os.pidfd_open(pid)
        except ProcessLookupError:
            return
        try:
            select.select([fd], [], [], seconds)
        finally:
            os.close(fd)
