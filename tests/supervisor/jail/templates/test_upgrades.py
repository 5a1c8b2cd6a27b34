"""Templates whose interpreter, libraries or preloaded modules change on disk."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio
import trio.testing

import nsm
from e2e_support import run, supervisor, variables_for
from nsmd.jail.templates import TemplateLauncher, launcher, open_templates
from nsmd.model.values import Environment
from realjail import environments, is_fork, needs_bwrap, new_launcher, open_directory, open_session
from venvs import in_venv, make_venv

pytestmark = [pytest.mark.jail, needs_bwrap]

VERSION = "import library; print(library.VERSION, 'library' in dir())"
WAIT_S = 60.0


@pytest.fixture
def venv() -> Generator[Path]:
    with open_directory("/var/tmp") as directory:
        modules = {"library": "import helper\nVERSION = helper.VERSION", "helper": "VERSION = 1"}
        make_venv(directory, modules)
        yield directory


@pytest.fixture
def python(venv: Path) -> Environment:
    return in_venv(environments()["python"], venv, "library")


def replace_file(path: Path, text: str) -> None:
    """Replace a file as package managers do: a new file takes the name."""
    new = path.with_name("new")
    new.write_text(text)
    new.rename(path)


class Told:
    """Listener that is told of changes."""

    def __init__(self, launcher: TemplateLauncher) -> None:
        self.suspected: list[int] = []
        self.outdated = trio.Event()
        launcher.on_change(self._tell)

    def _tell(self, pid: int, certain: bool) -> None:
        if certain:
            self.outdated.set()
        else:
            self.suspected.append(pid)


@asynccontextmanager
async def open_launcher() -> AsyncGenerator[tuple[TemplateLauncher, Told]]:
    async with open_templates(new_launcher()) as made:
        assert isinstance(made, TemplateLauncher)
        yield made, Told(made)


async def renewed(forking: TemplateLauncher) -> None:
    """Wait until there is a new template."""
    with trio.fail_after(WAIT_S):
        while not forking.templates:
            await trio.testing.wait_all_tasks_blocked(0.01)


@pytest.mark.slow
@pytest.mark.parametrize("what", ["module", pytest.param("interpreter", marks=pytest.mark.slow)])
async def test_a_template_is_made_again_when_its_files_change(
    python: Environment, venv: Path, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    monkeypatch.setattr(launcher, "SETTLE_S", 5.0)
    packages = next(venv.glob("lib/*/site-packages"))
    if what == "interpreter":
        (venv / "bin/python3").unlink()
        shutil.copy(Path("/usr/bin/python3").resolve(), venv / "bin/python3")
    async with open_launcher() as (forking, told):  # noqa: SIM117 (its value is used)
        async with open_session(python, launcher=forking) as old:
            [first] = forking.templates
            assert (await old.run(VERSION)).stdout == "1 True\n"
            # A burst: each change comes before it has been quiet for long enough.
            for number in range(2, 6):
                replace_file(packages / "helper.py", f"VERSION = {number}")
                if what == "interpreter":
                    shutil.copy(venv / "bin/python3", venv / "bin/new")
                    os.rename(venv / "bin/new", venv / "bin/python3")
                # Nothing is forked from what was there before.
                async with open_session(python, launcher=forking) as between:
                    assert not is_fork(between.jail)
                    assert between.jail.template_pid == first.pid
                    assert (await between.run(VERSION)).stdout == f"{number} True\n"
            with trio.fail_after(WAIT_S):
                await told.outdated.wait()
            assert told.suspected == [first.pid]
            await renewed(forking)
            [second] = forking.templates
            assert second is not first
            async with open_session(python, launcher=forking) as new:
                assert is_fork(new.jail)
                assert new.jail.template_pid == second.pid
                assert (await new.run(VERSION)).stdout == "5 True\n"
            assert (await old.run(VERSION)).stdout == "1 True\n"
            assert forking.templates == [second], "one burst, one template"


@pytest.mark.slow
async def test_a_touched_file_changes_no_template(
    python: Environment, venv: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(launcher, "SETTLE_S", 2.0)  # time in which a session is asked for
    async with open_launcher() as (forking, told):
        async with open_session(python, launcher=forking):
            [first] = forking.templates
        next(venv.glob("lib/*/site-packages/helper.py")).chmod(0o640)
        next(venv.glob("lib/*/site-packages/helper.py")).chmod(0o644)
        async with open_session(python, launcher=forking) as session:
            assert not is_fork(session.jail)
        with trio.fail_after(WAIT_S):
            while first.suspect:
                await trio.testing.wait_all_tasks_blocked(0.01)
        async with open_session(python, launcher=forking) as session:
            assert is_fork(session.jail)
        assert forking.templates == [first]
        assert not told.outdated.is_set()


@pytest.mark.slow
def test_sessions_of_the_old_one_say_so(venv: Path) -> None:
    """Also after a restart of the supervisor; and no session that was kept ready is given out."""
    config = f"""
[environments.science]
preset = "python"
interpreter = "{venv}/bin/python3"
preload = ["library"]
"""
    packages = next(venv.glob("lib/*/site-packages"))
    with open_directory() as directory, supervisor(directory, config=config) as running:
        variables = variables_for(directory)
        with running.client() as client:
            client.run(VERSION, env="science", session="old")
            for number in (2, 3):
                replace_file(packages / "helper.py", f"VERSION = {number}")
                assert (
                    client.run(VERSION, env="science", session=f"s{number}").stdout
                    == f"{number} True\n"
                )
            wait_outdated(client)
            assert client.run(VERSION, env="science", session="later").stdout == "3 True\n"
            assert client.run(VERSION, env="science", session="old").stdout == "1 True\n"
            rows = {row.name: row.outdated for row in client.sessions()}
            assert rows == {"old": True, "s2": True, "s3": True, "later": False}
        assert "idle, old" in run("nsm", "ps", variables=variables).stdout
        assert "have changed on disk" in run("nsm", "inspect", "old", variables=variables).stdout
        assert run("nsm", "reload", variables=variables).returncode == 0
        with running.client() as client:
            rows = {row.name: row.outdated for row in client.sessions()}
            assert rows == {"old": True, "s2": True, "s3": True, "later": False}


def wait_outdated(client: nsm.Client) -> None:
    """The change is seen when it has been quiet for a while, and nobody is told."""
    deadline_s = time.monotonic() + WAIT_S
    while not any(row.outdated for row in client.sessions()):
        assert time.monotonic() < deadline_s
        time.sleep(0.05)
