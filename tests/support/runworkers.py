"""Several workers for one run of the tests, by pytest-xdist: `make test`, `pytest -n auto`.

A file is run by one worker and in its order, since what its tests share (a supervisor, an agent, a
jail) is made once for each worker that runs one of them. The files that take longest come first,
so that all workers end at about the same time.

Tests marked `alone` run while every other worker waits: they measure, or need for themselves what
the kernel counts for all processes of a user. The workers agree on that by locks on files.
"""

from __future__ import annotations

import fcntl
import importlib
import os
import shutil
import tempfile
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, cast

import pytest

from rungates import AGAIN_VARIABLE, RUN_VARIABLE, EarlyFailures, FlakyTests, LeftoverGate, SkipGate

if TYPE_CHECKING:
    from collections.abc import Generator

PLUGIN = "nsm-run"
"""The name of the plugin that knows about the run as a whole."""

MOST_WORKERS = 4
"""Each has jails and supervisors of its own, which take memory."""

LONG_FIRST = tuple(
    "soak e2e packages nix conformance agent isolation templates jail docs nsmbox boxes builds"
    " setup faults policy http".split()
)
"""Folders of the tests with real processes, which take longest; the others are seconds."""


def join_run(config: pytest.Config) -> None:
    """Register what makes this process a worker, or the main process with its gates."""
    told = cast("dict[str, Any] | None", getattr(config, "workerinput", None))
    if told is not None:
        config.pluginmanager.register(Worker(told), PLUGIN)
        return
    if getattr(config.option, "maxworkerrestart", "") is None:
        # A crash is a failure in any case; and when another worker took the crashed one's place, a
        # run by files was seen to wait for ever (pytest-xdist 3.8).
        config.option.maxworkerrestart = "0"
    gate = LeftoverGate()
    config.pluginmanager.register(gate, "nsm-leftover-gate")
    config.pluginmanager.register(MainProcess(gate.run), PLUGIN)
    config.pluginmanager.register(SkipGate(in_ci=bool(os.environ.get("CI"))), "nsm-skip-gate")
    config.pluginmanager.register(EarlyFailures(config), "nsm-early-failures")
    if os.environ.get(AGAIN_VARIABLE):
        # The last to be registered ends first: the gates above judge what is left.
        config.pluginmanager.register(FlakyTests(config.option.markexpr), "nsm-flaky-tests")


def worker_count(config: pytest.Config) -> int:
    """How many for `-n auto`.

    Two more than there are processors: three workers kept one and a half of two busy, as tests
    wait a lot. `make soak` asks for the slow ones, which work more: one more. Those that measure
    are `alone` in any case.
    """
    if given := os.environ.get("PYTEST_XDIST_AUTO_NUM_WORKERS"):
        return int(given)
    processors = len(os.sched_getaffinity(0))
    slow = config.option.markexpr.startswith("slow")
    return min(MOST_WORKERS, processors + (1 if slow else 2))


def position(item: pytest.Item) -> int:
    """Before (-1) or after (1) all other tests of the run, or among them."""
    marks = {mark.name for mark in item.iter_markers()}
    return ("run_last" in marks) - ("run_first" in marks)


def for_workers(item: pytest.Item) -> tuple[int, int]:
    """The order in which files are handed out."""
    folder = item.path.parent.name
    rank = LONG_FIRST.index(folder) if folder in LONG_FIRST else len(LONG_FIRST)
    return position(item), rank


class NewWorker(Protocol):
    """Part of xdist's `WorkerController` that is used here: xdist brings no types."""

    workerinput: dict[str, Any]


class MainProcess:
    """State that the main process passes to its workers: the run's variable and directory.

    Attributes:
        directory: of the whole run, for what tests of several workers share. A supervisor with its
            socket there, in a folder of its own, is ended after the last test.
    """

    def __init__(self, run: str) -> None:
        self._run = run
        self.directory = Path(tempfile.mkdtemp(prefix="nsm-run-"))

    @pytest.hookimpl(optionalhook=True)
    def pytest_configure_node(self, node: NewWorker) -> None:
        node.workerinput["nsm_run"] = self._run
        node.workerinput["nsm_directory"] = str(self.directory)

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_make_scheduler(self, config: pytest.Config, log: object) -> object:
        if config.getoption("dist") not in {"load", "loadfile"}:
            return None  # asked for by name
        config.option.loadscopereorder = False  # our order, not that of the number of tests
        return importlib.import_module("xdist.scheduler").LoadFileScheduling(config, log)

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        items.sort(key=position)

    def pytest_sessionfinish(self) -> None:
        for socket in self.directory.glob("*/control.sock"):
            # Costs time to import, and few runs need it.
            from e2e_support import end_supervisor

            end_supervisor(str(socket))

    def pytest_unconfigure(self) -> None:
        shutil.rmtree(self.directory)


class Worker:
    """One of several workers.

    Attributes:
        directory: the main process's.
    """

    def __init__(self, told: dict[str, Any]) -> None:
        os.environ[RUN_VARIABLE] = told["nsm_run"]
        self.directory = Path(told["nsm_directory"])
        # Of the workers, how far among them this one is: 0 for the first, 1/2 for the second of 2.
        self._share = int(told["workerid"].removeprefix("gw")) / told["workercount"]
        # The first is held while one waits for the second: who wants to be alone would wait for
        # ever otherwise, while the others take turns.
        self._turn = _open(self.directory / "turn")
        self._running = _open(self.directory / "running")

    @pytest.hookimpl(wrapper=True)
    def pytest_make_collect_report(
        self, collector: pytest.Collector
    ) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
        """Each worker begins with other folders, since all import all files.

        pytest rewrites the assertions of each file and keeps the result on disk: in a fresh clone
        that takes longer than all the rest of collecting. So a worker finds there what the others
        began with, instead of doing the same at the same time.
        """
        report = yield
        if isinstance(collector, pytest.Dir) and report.result:
            first = int(len(report.result) * self._share)
            report.result = report.result[first:] + report.result[:first]
        return report

    @pytest.hookimpl(wrapper=True)
    def pytest_collection_modifyitems(
        self, items: list[pytest.Item]
    ) -> Generator[None, object, object]:
        items.sort(key=lambda item: item.path)  # all workers have the same order again
        result = yield
        items.sort(key=for_workers)
        return result

    # Around everything else: waiting counts for no time limit and for no duration.
    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, object, object]:
        kind = fcntl.LOCK_SH if item.get_closest_marker("alone") is None else fcntl.LOCK_EX
        with _held(self._turn, kind):
            fcntl.flock(self._running, kind)
        try:
            return (yield)
        finally:
            fcntl.flock(self._running, fcntl.LOCK_UN)

    def pytest_unconfigure(self) -> None:
        os.close(self._turn)
        os.close(self._running)


def _open(path: Path) -> int:
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)


@contextmanager
def _held(fd: int, kind: int) -> Generator[None]:
    fcntl.flock(fd, kind)
    try:
        yield
    finally:
        fcntl.flock(fd, fcntl.LOCK_UN)
