"""A supervisor for the tests of adapters, which `make test-integrations` runs.

`make test` leaves them out: each needs its framework (tools/integrations.py).
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from e2e_support import Supervisor, supervisor

if TYPE_CHECKING:
    from collections.abc import Generator


class LeftOut(pytest.Module):
    """A module of tests in a run without frameworks."""

    def collect(self) -> list[pytest.Item]:
        return []


def pytest_ignore_collect(config: pytest.Config) -> bool | None:
    """Leave everything to the runs that have frameworks."""
    ours = config.inipath is not None and config.inipath.name == "pytest.ini"
    return None if ours else True


def pytest_pycollect_makemodule(module_path: Path, parent: pytest.Collector) -> LeftOut | None:
    """Leave out modules that were named, too: pytest does not ask whether to ignore those."""
    if pytest_ignore_collect(parent.config):
        made: LeftOut = LeftOut.from_parent(parent, path=module_path)  # pyright: ignore[reportUnknownMemberType]
        return made
    return None


@pytest.fixture(scope="module")
def shared() -> Generator[Supervisor]:
    """A supervisor, which this process's sandboxes find."""
    before = os.environ.get("NSM_SOCKET")
    with tempfile.TemporaryDirectory(prefix="nsm-") as path, supervisor(Path(path)) as it:
        os.environ["NSM_SOCKET"] = it.socket
        yield it
        if before is None:
            del os.environ["NSM_SOCKET"]
        else:
            os.environ["NSM_SOCKET"] = before
