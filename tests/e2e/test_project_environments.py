"""A project's own `.venv` and `node_modules`, from a person's consent to the code that runs."""

from __future__ import annotations

import json
import os
import shutil
import signal
from typing import TYPE_CHECKING

import pytest
import trio
from mcp import MCPError

import nsm
from e2e_mcp import connected, description
from e2e_support import supervisor
from http_support import CONFIG, sdk_client, token_of, url_of
from nsm.client.environments import ProjectEnvironments
from realjail import needs_bwrap, open_directory
from venvs import install, make_project_venv

if TYPE_CHECKING:
    from collections.abc import Generator
    from pathlib import Path

    from e2e_support import Supervisor

pytestmark = [pytest.mark.jail, needs_bwrap]


@pytest.fixture
def project(request: pytest.FixtureRequest) -> Generator[Path]:
    with open_directory(getattr(request, "param", "/var/tmp")) as path:
        make_project_venv(path / ".venv", "tiny-1.2")
        script = path / ".venv/bin/tiny"
        script.write_text(f"#!{path}/.venv/bin/python\nimport tiny; print('tiny', tiny.VERSION)\n")
        script.chmod(0o755)
        yield path


def of(it: Supervisor, project: Path) -> dict[str, str]:
    """Environment of a model's client of a project."""
    return it.variables | {"PROJECT_DIR": str(project)}


async def test_a_person_agrees_and_the_projects_clients_have_it(
    shared: Supervisor, project: Path
) -> None:
    with open_directory() as other:
        shutil.copytree(project / ".venv", other / ".venv", symlinks=True)
        async with (
            connected(of(shared, project)) as (client, changed),
            connected(of(shared, other)) as (stranger, _),
        ):
            assert "venv" not in await description(client)
            before = await description(stranger)
            person = await trio.to_thread.run_sync(
                lambda: shared.run("nsm", "env", "use", "--project", str(project), ".venv")
            )
            assert "is venv now" in person.stdout, person
            await changed()
            assert "the project's .venv" in await description(client)
            result = await client.call_tool(
                "run", {"code": "import tiny; tiny.VERSION", "env": "venv"}
            )
            assert "1.2" in str(result.content)
            assert await description(stranger) == before
            refused = await stranger.call_tool("run", {"code": "1", "env": "venv"})
            assert refused.is_error


OPERATIONS = ("env_use", "env_found", "env_forget")


async def test_neither_models_nor_http_clients_can_agree(short_dir: Path, project: Path) -> None:
    with supervisor(short_dir, config=CONFIG) as it:
        async with (
            connected(of(it, project)) as (model, _),
            sdk_client(url_of(it), token_of(it)) as over_http,
        ):
            for client in (model, over_http):
                assert [tool.name for tool in (await client.list_tools()).tools] == ["run"]
                for name in OPERATIONS:
                    with pytest.raises(MCPError, match="no tool"):
                        await client.call_tool(name, {"project": str(project), "path": ".venv"})
                # Code could bring a client along, but finds no socket.
                code = f"import os; os.path.exists({str(it.directory / 'control.sock')!r})"
                result = await client.call_tool("run", {"code": code, "env": "python"})
                assert "False" in str(result.content)
        with it.client() as person:
            (row,) = ProjectEnvironments(person, str(project)).find()
            assert row.name is None


# Each session has a /tmp of its own.
@pytest.mark.parametrize(
    "project", ["/var/tmp", pytest.param("/tmp", marks=pytest.mark.slow)], indirect=True
)
def test_code_in_it_is_that_of_the_project(
    shared: Supervisor, client: nsm.Client, project: Path
) -> None:
    environments = ProjectEnvironments(client, str(project))
    (row,) = environments.find()
    assert (row.path, row.kind, row.name) == (".venv", "venv", None)
    assert [package.name for package in row.packages] == ["tiny"]
    assert environments.use(".venv").name == "venv"
    result = client.run(
        "import os, subprocess, sys\n"
        "print(sys.prefix, sys.base_prefix)\n"
        "print(subprocess.run(['tiny'], capture_output=True, text=True))\n"
        f"print(os.readlink({str(project)!r}), os.getcwd())\n",
        env="venv",
        project=str(project),
    )
    assert "/project/.venv /usr" in result.stdout, result
    assert "tiny 1.2" in result.stdout
    assert "/project /workspace" in result.stdout
    # A call that names only the language gets the project's own, in sessions, too.
    code = "import tiny; print(tiny.VERSION)"
    for more in ([], ["-s", "s"]):
        command = ["nsm", "run", "--project", str(project), *more]
        assert shared.run(*command, f"#!/usr/bin/env python3\n{code}").stdout == "1.2\n"
    assert client.run(code, env="python", project=str(project)).exit_code == 1
    install(next(project.glob(".venv/lib/python3*/site-packages")), "more-1")
    changed = client.run("import more", env="venv", project=str(project))
    assert any("have changed since somebody agreed" in note for note in changed.notes)
    assert client.run("import more", env="venv", project=str(project)).notes == ()
    assert environments.forget("venv") == "venv"
    with pytest.raises(nsm.NsmError, match="venv"):
        client.run("1", env="venv", project=str(project))
    assert "s" in [row.name for row in client.sessions()]


def test_a_copy_of_the_project_has_it_too(client: nsm.Client, project: Path) -> None:
    ProjectEnvironments(client, str(project)).use(".venv")
    library = next(project.glob(".venv/lib/python3*/site-packages")).relative_to(project)
    code = (
        f"import importlib, pathlib; p = pathlib.Path('/project/{library}/own.py')\n"
        "p.write_text('A = 1'); importlib.invalidate_caches()\nimport own, tiny; print(own.A)"
    )
    result = client.run(
        code, env="venv", session="copied", project=str(project), project_mode="overlay"
    )
    assert (result.stdout, result.stderr) == ("1\n", "")
    assert not (project / library / "own.py").exists()


def test_a_link_to_the_project_is_the_project(shared: Supervisor, project: Path) -> None:
    with open_directory() as folder, shared.client() as client:
        link = folder / "link"
        link.symlink_to(project)
        ProjectEnvironments(client, str(link)).use(str(link / ".venv"))
        result = client.run("import tiny; print(tiny.VERSION)", env="venv", project=str(link))
        assert result.stdout == "1.2\n"
        with pytest.raises(nsm.NsmError, match="not in the project"):
            ProjectEnvironments(client, str(link)).use(str(folder))


def test_a_hostile_interpreter_stays_in_its_session(client: nsm.Client, project: Path) -> None:
    environments = ProjectEnvironments(client, str(project))
    mark = project / "ran"
    for name in ("python", "python3"):
        python = project / ".venv/bin" / name
        python.unlink()
        python.write_text(f'#!/bin/sh\ntouch {mark}\nexec /usr/bin/python3 "$@"\n')
        python.chmod(0o755)
    environments.use(".venv")
    result = client.run("import os; print(os.getuid())", env="venv", project=str(project))
    assert result.stdout == "1000\n"
    assert not mark.exists()
    for name in ("python", "python3"):
        (project / ".venv/bin" / name).unlink()
        (project / ".venv/bin" / name).symlink_to("/nowhere")
    environments.use(".venv")
    result = client.run("1", env="venv", project=str(project))
    assert "cannot start /project/.venv/bin/python" in result.stderr, result


@pytest.mark.skipif(shutil.which("node") is None, reason="not here: no Node")
def test_packages_of_node_are_found_from_everywhere(
    shared: Supervisor, client: nsm.Client, project: Path
) -> None:
    package = project / "node_modules/small"
    package.mkdir(parents=True)
    (package / "package.json").write_text('{"name": "small", "version": "1.0.0"}')
    (package / "index.js").write_text("module.exports = {value: 42}\n")
    (project / "node_modules/.bin").mkdir()
    (project / "node_modules/.bin/smalls").symlink_to("/usr/bin/true")
    code = (
        "const text = `import small from 'small'; console.log(small.value)`;"
        "require('fs').writeFileSync('x.mjs', text);"
        "const {execSync} = require('child_process');"
        "console.log(String(execSync('smalls && node x.mjs')))"
    )
    assert client.run(code, env="node", project=str(project)).exit_code == 1
    ProjectEnvironments(client, str(project)).use("node_modules")
    for session in (None, "n"):
        result = client.run(code, env="node-modules", session=session, project=str(project))
        assert result.stdout == "42\n\n", result
    command = ["nsm", "run", "--project", str(project), f"#!/usr/bin/env node\n{code}"]
    assert shared.run(*command).stdout == "42\n\n"


@pytest.mark.slow
def test_an_agreement_survives_a_kill(project: Path) -> None:
    with open_directory() as directory, supervisor(directory, keep=True) as it:
        with it.client() as client:
            ProjectEnvironments(client, str(project)).use(".venv")
            os.kill(it.pid, signal.SIGKILL)
        it.process.wait()
        (directory / "control.sock").unlink(missing_ok=True)
        shown = it.run("nsm", "env", "found", "--json", "--project", str(project))
        assert json.loads(shown.stdout)[0]["name"] == "venv", shown
        code = "import tiny; print(tiny.VERSION)"
        ran = it.run("nsm", "run", "-e", "venv", "--project", str(project), code)
        assert ran.stdout == "1.2\n", ran
        it.run("nsm", "shutdown", "-y")
