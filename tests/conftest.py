"""What holds for every test: its surroundings, and what may be skipped.

Node is optional, so tests that need it are skipped where it is missing: those marked `node`, and
those in files and of parameters that are named after it.

A test that cannot run on this machine skips with a reason that begins with ``not here:`` (no
cgroup delegation, no such kernel, ...). Any other skip says that something is missing which
`tools/setup.sh` or the README brings, so with `CI` set it fails the run.
"""

from __future__ import annotations

import os
import shutil
import time
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

# How long an example takes says something about the machine and what else runs on it.
settings.register_profile("nsm", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("nsm")

ALLOWED_REASON = "not here:"

LEFTOVER_GRACE_S = 5.0
"""For processes that were told to end by the last tests."""

OTHERS_SETTINGS = ("NSM_", "PROJECT_", "SESSION_", "NIX_SANDBOX_", "CLAUDE_", "PYTHONUNBUFFERED")


def skip_reason(report: pytest.TestReport | pytest.CollectReport) -> str | None:
    """Why a test or a module was skipped; None when it was not (an expected failure is not)."""
    if not report.skipped or hasattr(report, "wasxfail"):
        return None
    # pytest reports a skip as (file, line, "Skipped: reason").
    text = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
    return text.removeprefix("Skipped: ")


class SkipGate:
    """Collects skips that CI does not accept."""

    def __init__(self) -> None:
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
        if self.refused and session.exitstatus == pytest.ExitCode.OK:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        if self.refused:
            terminalreporter.section("skipped in CI", sep="=", red=True)
            for line in self.refused:
                terminalreporter.write_line(line)
            terminalreporter.write_line(
                f"A skip in CI needs a reason that begins with {ALLOWED_REASON!r}; what the set-up"
                " installs must be there."
            )


class LeftoverGate:
    """Fails a run that leaves processes behind.

    They carry a variable of this run in their environment, which survives every way of detaching;
    jails have an empty one, but each has a supervisor above it that has not.
    """

    VARIABLE = "NSM_TEST_RUN"

    def __init__(self) -> None:
        self._entry = f"{self.VARIABLE}={os.getpid()}-{time.time_ns()}"
        name, _, value = self._entry.partition("=")
        os.environ[name] = value
        self.left: list[str] = []

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        deadline = time.monotonic() + LEFTOVER_GRACE_S
        self.left = self._look()
        while self.left and time.monotonic() < deadline:
            self.left = self._look()
        if self.left and session.exitstatus == pytest.ExitCode.OK:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        if self.left:
            terminalreporter.section("processes left behind", sep="=", red=True)
            for line in self.left:
                terminalreporter.write_line(line)

    def _look(self) -> list[str]:
        found: list[str] = []
        for pid in filter(str.isdigit, os.listdir("/proc")):
            if int(pid) == os.getpid():
                continue
            try:
                if self._entry.encode() in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0"):
                    command = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ")
                    found.append(f"{pid}: {command.decode(errors='replace')}")
            except OSError:
                continue  # gone, or another user's
        return found


def needs_node(item: pytest.Item) -> bool:
    """Whether a test runs Node; marked, or by its name."""
    if item.get_closest_marker("node") or "node" in item.path.stem.split("_"):
        return True
    parameters = item.name.partition("[")[2]
    return parameters.startswith("node") or "-node" in parameters


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if shutil.which("node") is None:
        skip = pytest.mark.skip(reason="node is missing")
        for item in items:
            if needs_node(item):
                item.add_marker(skip)


def pytest_configure(config: pytest.Config) -> None:
    # Jails of root run as another user: what a test lays out for them has to be readable, also
    # where the person who runs the tests prefers otherwise.
    os.umask(0o022)
    # Programs under test see an ordinary user's environment: nothing that leads to this user's own
    # supervisor, and no setting under which Python behaves better than it does for most people.
    for name in list(os.environ):
        if name.startswith(OTHERS_SETTINGS):
            del os.environ[name]
    config.pluginmanager.register(LeftoverGate(), "nsm-leftover-gate")
    if os.environ.get("CI"):
        config.pluginmanager.register(SkipGate(), "nsm-skip-gate")
