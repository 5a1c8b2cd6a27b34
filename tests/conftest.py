"""Set-up of every test: its environment, and what may be skipped.

Node is optional, so tests that need it are skipped where it is missing: those marked `node`, and
those in files and of parameters that are named after it.

A test that cannot run on this machine skips with a reason that begins with ``not here:`` (no
cgroup delegation, no such kernel, ...). Any other skip says that something is missing which
`tools/setup.sh` or the README brings, so with `CI` set it fails the run.
"""

from __future__ import annotations

import gc
import os
import resource
import shutil
import signal
from typing import TYPE_CHECKING, cast

import pytest
from hypothesis import HealthCheck, settings

from nsmd.host.descriptors import raise_limit
from rungates import drawn
from runworkers import PLUGIN, join_run, worker_count

if TYPE_CHECKING:
    from collections.abc import Generator
    from pathlib import Path

    from runworkers import MainProcess, Worker

# How long an example takes says something about the machine and what else runs on it. They are
# other ones in each run, and `make soak` has more of them, as it takes its time.
settings.register_profile(
    "nsm",
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
    max_examples=int(os.environ.get("NSM_TEST_EXAMPLES", "25")),
)
settings.load_profile("nsm")

OTHERS_SETTINGS = ("NSM_", "PROJECT_", "SESSION_", "NIX_SANDBOX_", "CLAUDE_", "PYTHONUNBUFFERED")


def needs_node(item: pytest.Item) -> bool:
    """Return whether a test runs Node, by its mark or its name."""
    if item.get_closest_marker("node") or "node" in item.path.stem.split("_"):
        return True
    parameters = item.name.partition("[")[2]
    return parameters.startswith("node") or "-node" in parameters


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Nothing of what collecting makes is garbage before the end of the run, and it is a lot.

    To look through it again and again takes as long as the rest of collecting, and then again in
    each test that collects garbage.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if (one_in := int(os.environ.get("SOAK_ONE_IN") or "1")) > 1:
        chosen = drawn(items, one_in, os.environ["SOAK_SEED"])
        others = set(items) - set(chosen)
        config.hook.pytest_deselected(items=list(others))
        items[:] = chosen
    if os.geteuid() != 0:
        for item in items:
            if item.get_closest_marker("root"):
                item.add_marker(pytest.mark.skip(reason="not here: needs root (make test-root)"))
    if shutil.which("node") is None:
        skip = pytest.mark.skip(reason="node is missing")
        for item in items:
            if needs_node(item):
                item.add_marker(skip)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers(config: pytest.Config) -> int:
    return worker_count(config)


def without_shims(path: str) -> str:
    """Leave out directories whose Python is a script, such as pyenv's.

    A shim looks for the real program at each start, which takes as long as eight starts of Python.
    A directory stays that has the only Python or the only Node.
    """

    def is_needless(directory: str) -> bool:
        try:
            with open(os.path.join(directory, "python3"), "rb") as python:
                if python.read(2) != b"#!":
                    return False
        except OSError:
            return False
        others = os.pathsep.join(each for each in directories if each != directory)
        return all(
            shutil.which(name, path=others) is not None
            for name in ("python3", "node")
            if shutil.which(name, path=directory) is not None
        )

    directories = path.split(os.pathsep)
    for directory in tuple(directories):
        if is_needless(directory):
            directories.remove(directory)
    return os.pathsep.join(directories)


def pytest_configure(config: pytest.Config) -> None:
    # Jails of root run as another user: what a test lays out for them has to be readable, also
    # where the person who runs the tests prefers otherwise.
    os.umask(0o022)
    # Programs under test see an ordinary user's environment: nothing that leads to this user's own
    # supervisor, and no setting under which Python behaves better than it does for most people.
    for name in list(os.environ):
        if name.startswith(OTHERS_SETTINGS) and not name.startswith("NSM_TEST_"):
            del os.environ[name]
    os.environ["PATH"] = without_shims(os.environ.get("PATH", os.defpath))
    # A shell starts what runs in its background with interrupts ignored, nohup what it starts with
    # hang-ups, which is inherited: what is to end by one would never.
    if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    for number in (signal.SIGQUIT, signal.SIGHUP):
        if signal.getsignal(number) == signal.SIG_IGN:
            signal.signal(number, signal.SIG_DFL)
    join_run(config)


@pytest.hookimpl(wrapper=True)
def pytest_pyfunc_call() -> Generator[None, object, object]:
    """Keep the reason of a skip: pytest-trio takes it out of an exception group, without."""
    try:
        return (yield)
    except pytest.skip.Exception as skip:
        reason: BaseException | None = skip.__context__
        while isinstance(reason, BaseExceptionGroup):
            reason = cast("BaseExceptionGroup[BaseException]", reason).exceptions[0]
        if skip.msg or not isinstance(reason, pytest.skip.Exception):
            raise
        raise reason from None


@pytest.fixture
def many_descriptors() -> Generator[None]:
    """Raise the limit of descriptors to the hard one, as the supervisor and its holder do.

    A desktop's soft limit is 1024. It bounds the test process as well: the kernel refuses to pass
    more descriptors through sockets than that, whoever sends them.
    """
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    raise_limit()
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, before)


@pytest.fixture(scope="session")
def run_directory(pytestconfig: pytest.Config) -> Path:
    """A directory that all workers of the run have in common."""
    plugin = cast("MainProcess | Worker", pytestconfig.pluginmanager.get_plugin(PLUGIN))
    return plugin.directory
