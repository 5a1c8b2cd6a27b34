"""Environments from a project's own lock, from a person's consent to the code that runs."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import signal
import subprocess
import tempfile
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import trio

import nsm
from e2e_support import supervisor
from nsm.client.environments import AsyncProjectEnvironments, ProjectEnvironments
from packageindex import IndexServer, index_server, wheel
from realjail import needs_bwrap, open_directory

if TYPE_CHECKING:
    from collections.abc import Generator

    from e2e_support import Supervisor
    from nsm.wire.environments import FoundRow

pytestmark = [pytest.mark.jail, needs_bwrap]

CODE = "import demo, sys; print(demo.version, sys.prefix)"


@pytest.fixture
def index() -> Generator[IndexServer]:
    with index_server(None) as server:
        server.host = "127.0.0.1"
        server.add_project("demo", "1.0", "2.0")
        yield server


@contextmanager
def running_in(directory: Path, index: IndexServer, *, keep: bool = False) -> Generator[Supervisor]:
    variables = {"PIP_INDEX_URL": index.url("/simple"), "npm_config_registry": index.url("/npm/")}
    config = "[pool]\nmax_spares = 0\n"
    with supervisor(directory, config=config, variables=variables, keep=keep) as it:
        yield it


@pytest.fixture
def running(index: IndexServer) -> Generator[Supervisor]:
    with (
        tempfile.TemporaryDirectory(prefix="nsm-") as directory,
        running_in(Path(directory), index) as it,
    ):
        yield it


@pytest.fixture
def project() -> Generator[Path]:
    with open_directory("/var/tmp") as path:
        (path / "pyproject.toml").touch()
        lock(path, "1.0")
        yield path


def lock(project: Path, version: str) -> None:
    _, data, _ = wheel("demo", version)
    (project / "uv.lock").write_text(
        f"""
version = 1

[[package]]
name = "demo"
version = "{version}"
source = {{ registry = "https://elsewhere.invalid/simple" }}
wheels = [
    {{ url = "file:///etc/passwd", hash = "sha256:{hashlib.sha256(data).hexdigest()}" }},
]

[[package]]
name = "mine"
source = {{ virtual = "." }}
dependencies = [{{ name = "demo" }}]
"""
    )


def test_a_lock_is_what_it_was_when_somebody_agreed(running: Supervisor, project: Path) -> None:
    used = running.run("nsm", "env", "use", "uv.lock", "--project", str(project))
    assert used.stdout == "uv.lock (lock of uv, 2 packages) is uv now: `nsm run -e uv CODE`\n", used
    with running.client() as client, open_directory("/var/tmp") as other:
        environments = ProjectEnvironments(client, str(project))

        def run(code: str = CODE, session: str | None = None) -> tuple[str, tuple[str, ...]]:
            result = client.run(code, env="uv", session=session, project=str(project))
            return result.stdout, result.notes

        assert run(session="old") == ("1.0 /env\n", ())
        with pytest.raises(nsm.NsmError, match="No environment 'uv'"):
            client.run(CODE, env="uv", project=str(other))
        assert [row.name for row in client.builds.list_all()] == ["uv"]
        lock(project, "2.0")
        text, (note,) = run()
        assert text == "1.0 /env\n"
        assert "the project's uv.lock has changed since somebody agreed" in note
        assert run() == ("1.0 /env\n", ())
        (row,) = environments.find()
        assert (row.changed, row.problem) == (True, None)
        assert row.build is not None
        assert row.build.wanted_by == ("nsm env use",)
        assert environments.use("uv.lock").build is not None
        assert run() == ("2.0 /env\n", ())
        # Sessions keep what they began with.
        assert run("import importlib; print(importlib.reload(demo).version)", "old")[0] == "1.0\n"
        assert client.builds.gc().removed == ()
        (kept,) = client.builds.remove(["uv"]).errors
        assert "belongs to the project" in kept.error.message
        assert environments.forget("uv.lock") == "uv"
        with pytest.raises(nsm.NsmError, match="uv"):
            run()
        assert run("print(importlib.reload(demo).version)", "old")[0] == "1.0\n"
        client.kill(["old"])
        assert len(client.builds.gc().removed) == 2
        assert client.builds.list_all() == []


@pytest.mark.slow
def test_an_agreed_lock_outlives_the_supervisor(index: IndexServer, project: Path) -> None:
    with open_directory() as directory, running_in(directory, index, keep=True) as it:
        with it.client() as client:
            ProjectEnvironments(client, str(project)).use("uv.lock")
            os.kill(it.pid, signal.SIGKILL)
        it.process.wait()
        (directory / "control.sock").unlink(missing_ok=True)
        lock(project, "2.0")
        index.files.clear()
        ran = it.run("nsm", "run", "-e", "uv", "--project", str(project), CODE)
        assert ran.stdout == "1.0 /env\n", ran
        shown = it.run("nsm", "env", "found", "--json", "--project", str(project))
        assert json.loads(shown.stdout)[0]["changed"] is True
        it.run("nsm", "shutdown")


@pytest.mark.slow
async def test_calls_wait_for_the_build(
    running: Supervisor, index: IndexServer, project: Path
) -> None:
    held = index.hold("/simple/demo/")
    async with running.async_client() as client, running.async_client() as other:
        rows: list[FoundRow] = []

        async def use() -> None:
            environments = AsyncProjectEnvironments(client, str(project))
            rows.append(await environments.use("uv.lock"))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(use)
            await held.asked.wait()
            (row,) = await AsyncProjectEnvironments(other, str(project)).find()
            assert row.problem is not None
            assert "it is being built" in row.problem

            async def release() -> None:
                held.answer.set()

            nursery.start_soon(release)
            result = await other.run(CODE, env="uv", project=str(project))
        assert result.stdout == "1.0 /env\n"
        assert rows[0].build is not None
        assert rows[0].build.state == "ready"


@pytest.mark.slow
@pytest.mark.node
@pytest.mark.skipif(shutil.which("npm") is None, reason="not here: npm is missing")
def test_the_lock_of_npm_makes_an_environment(
    running: Supervisor, index: IndexServer, project: Path
) -> None:
    index.add_npm("left", "1.0.0", "1.1.0")
    manifest = {"name": "mine", "dependencies": {"left": "1.0.0"}}
    (project / "package.json").write_text(json.dumps(manifest))
    subprocess.run(
        ["npm", "install", "--package-lock-only", "--registry", index.url("/npm/")],
        cwd=project,
        env={"PATH": os.environ["PATH"], "HOME": str(running.directory)},
        check=True,
        capture_output=True,
    )
    with running.client() as client:
        row = ProjectEnvironments(client, str(project)).use("package-lock.json", name="web")
        assert row.build is not None
        assert (row.name, row.package_count, row.build.state) == ("web", 1, "ready")
        result = client.run("console.log(require('left'))", env="web", project=str(project))
        assert result.stdout == "1.0.0\n"


@pytest.mark.slow
def test_a_lock_that_cannot_be_installed_says_why(running: Supervisor, project: Path) -> None:
    (project / "uv.lock").write_text("version = 1\n" + "x = [" * 10_000)
    used = running.run("nsm", "env", "use", "uv.lock", "--project", str(project))
    assert used.returncode == 1
    assert "is not valid TOML" in used.stderr
    ran = running.run("nsm", "run", "-e", "uv", "--project", str(project), CODE)
    assert "is not valid TOML" in ran.stderr
    lock(project, "3.0")
    used = running.run("nsm", "env", "use", "uv.lock", "--project", str(project))
    assert (used.returncode, used.stdout) == (1, "")
    assert "demo" in used.stderr
    lock(project, "2.0")
    used = running.run("nsm", "env", "use", "uv.lock", "--project", str(project))
    assert used.returncode == 0, used
