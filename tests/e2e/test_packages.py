"""Environments from packages in a real supervisor: added, declared, updated, removed, collected."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import threading
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import trio

from e2e_mcp import call, connected, description
from e2e_support import descendants, program, supervisor, wait_gone
from nsm.wire.errors import BadRequestError
from packageindex import IndexHandler, IndexServer, index_server
from realjail import needs_bwrap

if TYPE_CHECKING:
    from collections.abc import Generator

    from e2e_support import Supervisor
    from nsm.wire.environments import BuiltRow

pytestmark = [pytest.mark.jail, needs_bwrap]


@pytest.fixture
def index() -> Generator[IndexServer]:
    with index_server(None) as server:
        server.add_project("demo", "1.0", "2.0")
        server.add_project("other", "1.0")
        yield server


@pytest.fixture
def running(index: IndexServer) -> Generator[Supervisor]:
    variables = {
        "PIP_INDEX_URL": index.url("/simple", host="127.0.0.1"),
        "npm_config_registry": index.url("/npm/", host="127.0.0.1"),
    }
    with supervisor(config="[pool]\nmax_spares = 0\n", variables=variables) as it:
        yield it


def stored(it: Supervisor) -> set[str]:
    return {path.name for path in it.directory.rglob("envs/*") if path.name[0] != "."}


def test_an_environment_comes_changes_and_goes_under_its_sessions(running: Supervisor) -> None:
    said = running.run("nsm", "env", "add", "science", "--pip", "demo<2", "--preload", "demo")
    assert said.stdout.startswith("science is ready: "), said.stderr
    with running.client() as client:
        code = "import demo, sys; print(demo.version, sys.prefix)"
        assert client.run(code, env="science", session="old").stdout == "1.0 /env\n"
        (science,) = [each for each in client.envs() if each.name == "science"]
        assert science.preload == ("demo",)
        row = client.builds.add_packages("science", pip=["demo", "other"])
        assert (row.state, row.reference) == ("ready", "pip: demo, other")
        assert client.run(code, env="science").stdout == "2.0 /env\n"
        assert client.run("import other", env="science").exit_code == 0
        client.builds.add_packages("science", pip=["other"])
        (science,) = [each for each in client.envs() if each.name == "science"]
        assert science.preload == (), "it has no such module any more"
        client.builds.add_packages("science", pip=["demo", "other"])
        (science,) = [each for each in client.envs() if each.name == "science"]
        assert science.preload == ("demo",)
        assert len(stored(running)) == 3
        assert client.builds.gc().removed != (), "nothing runs in the one without demo"
        assert client.builds.gc().removed == (), "a session runs in the first one"
        client.builds.remove(["science"])
        again = client.run(
            f"import importlib; importlib.reload(demo); {code}", env="science", session="old"
        )
        assert again.stdout == "1.0 /env\n"
        client.kill(["old"])
        assert len(client.builds.gc(dry_run=True).removed) == 2
        assert len(client.builds.gc().removed) == 2
        assert stored(running) == set()


@pytest.mark.slow
def test_an_environment_is_waited_for_across_a_reload(running: Supervisor) -> None:
    reloaded: list[str] = []

    def reload_once(_row: BuiltRow) -> None:
        if not reloaded:
            reloaded.append(running.run("nsm", "reload").stderr)

    with running.client() as client:
        row = client.builds.add_packages("science", pip=["demo"], on_progress=reload_once)
        assert (row.state, len(reloaded)) == ("ready", 1), (row, reloaded)
        assert client.run("import demo; print(demo.version)", env="science").stdout == "2.0\n"


@pytest.mark.parametrize("mode", ["legacy", pytest.param("2026-07-28", marks=pytest.mark.slow)])
async def test_the_next_call_of_a_model_has_the_packages(
    running: Supervisor, index: IndexServer, mode: str
) -> None:
    held = index.hold("/simple/demo/")
    code = "import demo; print(demo.version)"
    async with connected(running.variables, mode) as (client, changed):
        assert "science" not in await description(client)
        command = [program("nsm"), "env", "add", "science", "--pip", "demo"]
        async with trio.open_nursery() as nursery:
            adding = partial(trio.run_process, command, env=running.variables)
            nursery.start_soon(adding)
            await held.asked.wait()
            text, is_error = await call(client, code, "science")
            assert is_error
            assert re.search(r"it is being built, for \d+ s so far \(.+\)", text), text
            assert await call(client, "print(1)", "python") == ("1\n", False)
            held.answer.set()
        while "- science: " not in await description(client):
            await changed()
        assert await call(client, code, "science") == ("2.0\n", False)


@pytest.mark.slow
async def test_packages_added_during_a_build_win(running: Supervisor, index: IndexServer) -> None:
    held = index.hold("/simple/demo/")
    async with running.async_client() as one, running.async_client() as two:

        async def add_first() -> None:
            with pytest.raises(BadRequestError, match=r"'lab' is made from .* pip: other"):
                await one.builds.add_packages("lab", pip=["demo"])

        async with trio.open_nursery() as nursery:
            nursery.start_soon(add_first)
            await held.asked.wait()
            states: list[str] = []

            def seen(row: BuiltRow) -> None:
                states.append(row.state)
                held.answer.set()

            row = await two.builds.add_packages("lab", pip=["other"], on_progress=seen)
        assert (row.state, row.reference) == ("ready", "pip: other")
        assert states[0] == "building"
        assert (await two.run("import other", env="lab")).exit_code == 0


@pytest.mark.slow
@pytest.mark.node
@pytest.mark.skipif(shutil.which("npm") is None, reason="not here: npm is missing")
def test_node_packages_are_found_from_everywhere(
    running: Supervisor, index: IndexServer, tmp_path: Path
) -> None:
    index.host = "127.0.0.1"
    index.add_npm("left", "1.0.0", "1.1.0", manifest={"bin": "index.js"})
    tmp_path.chmod(0o755)
    (tmp_path / "module.mjs").write_text("import left from 'left'; console.log('module', left);")
    said = running.run("nsm", "env", "add", "web", "--npm", "left@^1")
    assert said.stdout.startswith("web is ready: "), said.stderr
    with running.client() as client:
        (web,) = [each for each in client.envs() if each.name == "web"]
        assert (web.interpreter, web.source) == ("node", "npm: left@^1")

        def run(code: str) -> str:
            return client.run(code, env="web", project=str(tmp_path)).stdout

        assert run("console.log(require('left'))") == "1.1.0\n"
        assert run("import left from 'left'; console.log(left)") == "1.1.0\n"
        assert run("await import('/project/module.mjs')") == "module 1.1.0\n"
        which = "require('child_process').execSync('which left').toString()"
        assert run(f"process.stdout.write({which})") == "/env/node_modules/.bin/left\n"
        index.add_npm("left", "1.0.0", "1.1.0", "1.2.0")
        client.builds.update(["web"])
        assert run("console.log(require('left'))") == "1.2.0\n"


@pytest.mark.slow
@pytest.mark.node
@pytest.mark.skipif(shutil.which("npm") is None, reason="not here: npm is missing")
def test_typescript_runs_where_something_takes_its_types_away(
    running: Supervisor, index: IndexServer, tmp_path: Path
) -> None:
    index.host = "127.0.0.1"
    index.add_esbuild()
    file = tmp_path / "sum.ts"
    file.write_text("interface Pair { one: number }\nlet sum: number = 1 + 2; console.log(sum)\n")
    said = running.run("nsm", "run", "--no-project", "-f", str(file))
    if said.returncode:  # this Node itself takes no types away
        assert "nsm env add NAME --npm esbuild" in said.stderr
    assert running.run("nsm", "env", "add", "web", "--npm", "esbuild").returncode == 0
    said = running.run("nsm", "run", "--no-project", "-e", "web", "-f", str(file))
    assert said.stdout == "3\n", said.stderr
    with running.client() as client:

        def run(code: str) -> str:
            result = client.run(code, env="web", session="typed")
            return result.stdout + "".join(each["text/plain"] for each in result.displays)

        assert run("const x: number = 1; let y: string = 'a'; [x, y]") == "[ 1, 'a' ]"
        assert run("let y: number = x + 1; y") == "2"
        assert run("[x, y]") == "[ 1, 2 ]"
        failed = client.run("let z = ;", env="web", session="typed")
        assert (failed.exit_code, failed.notes) == (1, ())
        assert "SyntaxError: Unexpected token ';'" in failed.stderr


@pytest.mark.slow
def test_a_configuration_and_its_lock_are_taken_up_hot(running: Supervisor) -> None:
    config = running.directory / "config/nsm/config.toml"
    config.write_text('[environments.lab]\npip = ["demo"]\nmemory_mb = 300\n')
    said = running.run("nsm", "reload", "--config")
    assert said.returncode == 0, said.stderr
    with running.client() as client:
        code = "import demo; print(demo.version)"
        client.builds.log("lab", str, follow=True)  # until the build has ended
        result = client.run(code, env="lab")
        assert result.stdout == "2.0\n"
        (lab,) = [each for each in client.envs() if each.name == "lab"]
        assert lab.memory_mb == 300
        lock = config.parent / "locks/lab.txt"
        assert "demo==2.0" in lock.read_text()
        # As if another machine's lock came by git.
        client.builds.add_packages("spare", pip=["demo<2"])
        pins = (lock.parent / "spare.txt").read_text().partition("demo==")[2]
        head = lock.read_text().partition("demo==")[0]
        lock.write_text(f"{head}demo=={pins}")
        assert running.run("nsm", "reload", "--config").returncode == 0
        client.builds.log("lab", str, follow=True)
        assert client.run(code, env="lab").stdout == "1.0\n"
    rows = json.loads(running.run("nsm", "env", "builds", "--json").stdout)
    assert [row["wanted_by"] for row in rows] == [["config.toml"], ["nsm env add"]]


def test_the_jail_of_a_build_ends_with_a_killed_supervisor(short_dir: Path) -> None:
    asked, over = threading.Event(), threading.Event()

    def hang(_: IndexHandler) -> None:
        asked.set()
        over.wait()

    with index_server(None) as index:
        index.handlers["/simple/demo/"] = hang
        variables = {"PIP_INDEX_URL": index.url("/simple", "127.0.0.1")}
        with supervisor(short_dir, variables=variables) as it, it.client() as client:
            client.builds.add_packages("demo", pip=["demo"], wait=False)
            assert asked.wait(60)
            tools = [
                pid
                for pid in descendants(it.pid)
                if b"/run/nsm/tool/uv\0" in Path(f"/proc/{pid}/cmdline").read_bytes()
            ]
            assert tools
            held = [os.pidfd_open(pid) for pid in tools]
            for each in held:  # so that none ends because it has no network any more
                signal.pidfd_send_signal(each, signal.SIGSTOP)
            os.kill(it.pid, signal.SIGKILL)
            wait_gone(held)
            over.set()
