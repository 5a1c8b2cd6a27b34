"""Slow imports in a real supervisor: measured, suggested, preloaded, seen."""

from __future__ import annotations

import re
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from e2e_support import supervisor
from packageindex import index_server
from realjail import needs_bwrap

if TYPE_CHECKING:
    from collections.abc import Generator

    from e2e_support import Supervisor
    from nsm.wire.environments import EnvironmentRow

pytestmark = [pytest.mark.jail, needs_bwrap]

MODULES = {
    "slow.py": b"import time; time.sleep(0.1)",
    "threads.py": b"import threading, time\n"
    b"threading.Thread(target=time.sleep, args=(99,), daemon=True).start()",
    "dies.py": b"import os; os.abort()",
}

LOADED = "import sys; print('slow' in sys.modules)"


@pytest.fixture(scope="module")
def running() -> Generator[Supervisor]:
    with index_server(None) as server, tempfile.TemporaryDirectory(prefix="nsm-") as directory:
        server.add_project("demo", "1.0", more=MODULES)
        server.add_project("other", "1.0")
        variables = {"PIP_INDEX_URL": server.url("/simple", host="127.0.0.1")}
        config = "[pool]\nmax_spares = 0\n"
        with supervisor(Path(directory), config=config, variables=variables) as it:
            yield it


def add(it: Supervisor, *words: str) -> None:
    """Add an environment with the slow module."""
    added = it.run("nsm", "env", "add", *words)
    assert added.returncode == 0, added.stderr


def row_of(it: Supervisor, name: str) -> EnvironmentRow:
    with it.client() as client:
        (row,) = [each for each in client.envs() if each.name == name]
        return row


@pytest.mark.slow
def test_slow_imports_are_suggested_and_preloaded(running: Supervisor) -> None:
    add(running, "science", "--pip", "demo")
    with running.client() as client:
        client.run("pass", env="science", session="old")
        old = next(each.id for each in client.sessions() if each.name == "old")
        for _ in range(3):
            result = client.run("import slow, threads; print(1)", env="science")
            assert (result.stdout, result.notes) == ("1\n", ()), "nothing for models"
        (slow,) = row_of(running, "science").slow_imports
        assert (slow.module, slow.sessions, slow.of) == ("slow", 3, 4)
        told = f"`import slow` took {slow.seconds:.1f} s in 3 of the last 4 sessions: "
        told += "`nsm env preload science slow`"
        assert told in running.run("nsm", "env").stdout.splitlines()
        assert told in running.run("nsm", "env", "show", "science").stdout
        assert told in running.run("nsm", "inspect", old).stdout
        done = running.run("nsm", "env", "preload", "science", "slow")
        assert done.stdout.startswith("science preloads slow ("), done.stderr
        assert done.stdout.endswith(" MiB\n")
        row = row_of(running, "science")
        assert (row.preload, row.slow_imports) == (("slow",), ())
        assert client.run(LOADED, env="science").stdout == "True\n"
        assert client.run(LOADED, env="science", session="old").stdout == "False\n"
        assert told not in running.run("nsm", "inspect", old).stdout
        (template,) = row_of(running, "science").templates
        assert template.imported["slow"] >= 0.1
        assert (template.memory_bytes or 0) > 1 << 20
        shown = running.run("nsm", "env", "show", "science").stdout
        assert re.search(r"templates +\d+\.\d MiB.*, imported slow in \d+\.\d\d s\n", shown), shown
        metrics = running.run("nsm", "status", "metrics").stdout
        assert float(metrics.partition("\nnsm_template_memory_bytes ")[2].split()[0]) > 1e6
        gone = running.run("nsm", "env", "preload", "--remove", "science", "slow")
        assert gone.stdout == "science preloads nothing\n"
        assert client.run(LOADED, env="science").stdout == "False\n"


@pytest.mark.slow
def test_preloading_outlives_the_supervisor_and_other_packages(running: Supervisor) -> None:
    add(running, "lasting", "--pip", "demo")
    for _ in range(3):
        assert running.run("nsm", "run", "-e", "lasting", "import slow").returncode == 0
    assert running.run("nsm", "reload").returncode == 0
    (slow,) = row_of(running, "lasting").slow_imports
    assert slow.sessions == 3
    assert running.run("nsm", "env", "preload", "lasting", "slow").returncode == 0
    assert running.run("nsm", "reload").returncode == 0
    assert row_of(running, "lasting").preload == ("slow",)
    assert running.run("nsm", "run", "-e", "lasting", LOADED).stdout == "True\n"
    add(running, "lasting", "--pip", "demo other")
    assert row_of(running, "lasting").preload == ("slow",)
    add(running, "lasting", "--pip", "demo", "--preload", "other")
    assert row_of(running, "lasting").preload == ("other",)


def test_modules_that_cannot_be_preloaded_are_left_out_with_the_reason(running: Supervisor) -> None:
    add(running, "partial", "--pip", "demo")
    said = running.run("nsm", "env", "preload", "partial", "slow", "threads", "nonesuch")
    assert said.returncode == 1
    assert said.stdout.startswith("partial preloads slow (")
    assert "not preloaded: threads: it starts a thread" in said.stderr
    assert "not preloaded: nonesuch: ModuleNotFoundError: No module named" in said.stderr
    assert row_of(running, "partial").preload == ("slow",)
    assert row_of(running, "partial").not_preloaded == ()
    said = running.run("nsm", "env", "preload", "partial", "dies")
    assert said.returncode == 1
    assert "Nothing has changed: there is no template with slow, dies" in said.stderr
    assert running.run("nsm", "run", "-e", "partial", LOADED).stdout == "True\n"
