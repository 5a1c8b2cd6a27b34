"""Environments in projects that somebody agreed to use: remembered, checked, used."""

from __future__ import annotations

import json
import shutil
import threading
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from functools import partial
from pathlib import Path

import pytest
import trio

from nsm.wire.errors import BadRequestError, EnvironmentUnavailableError
from nsmd.environments.host_presets import find_python_in
from nsmd.environments.project import reading
from nsmd.environments.project.agreements import load_agreements
from nsmd.environments.project.environment_manager import ProjectEnvironmentManager
from nsmd.environments.project.reading import read
from nsmd.host import event_loop
from nsmd.model.settings import Settings
from nsmd.model.values import ClientIdentity, Environment
from realjail import mount_of
from venvs import make_project_venv

NODE = Environment(name="node", interpreter="node", program="/usr/bin/node", description="Node.js")


def client(path: Path | None, scope: str = "a") -> ClientIdentity:
    return ClientIdentity(name="t", scope=scope, project=None if path is None else mount_of(path))


@asynccontextmanager
async def opened(
    tmp_path: Path,
    *,
    settings: Settings | None = None,
    search_path: str = "/usr/bin",
    node: Environment | None = NODE,
) -> AsyncGenerator[ProjectEnvironmentManager]:
    path = str(tmp_path / "state/nsm/project-environments.json")
    async with trio.open_nursery() as nursery:
        used = ProjectEnvironmentManager(path, load_agreements(path), nursery)
        find = partial(
            find_python_in,
            settings=settings or Settings(),
            search_path=search_path,
            home=str(tmp_path / "home"),
        )
        used.configure(find, node)
        yield used


@pytest.fixture
def project(tmp_path: Path) -> Path:
    path = tmp_path / "project"
    path.mkdir()
    make_project_venv(path / ".venv", "numpy-1.26")
    return path


async def test_an_environment_is_used_only_after_somebody_agrees(
    tmp_path: Path, project: Path
) -> None:
    async with opened(tmp_path) as used:
        assert not used.environments(client(project))
        (row,) = await used.find(mount_of(project))
        assert (row.path, row.name) == (".venv", None)
        told: list[None] = []
        used.changed = lambda: told.append(None)
        row = await used.use(mount_of(project), ".venv", None, ())
        assert row.name == "venv"
        assert told
        (environment,) = used.environments(client(project))
        assert (environment.name, environment.problem) == ("venv", None)
        assert environment.program == "/project/.venv/bin/python"
        assert environment.agent_python.startswith("/usr/bin/python3")
        assert environment.preload == ()
        assert environment.has_module("numpy")
        assert used.is_current(environment)
        assert used.preferred(client(project), "python") == "venv"
        assert used.preferred(client(project), "node") is None
        other = tmp_path / "other"
        shutil.copytree(project, other, symlinks=True)
        assert not used.environments(client(other))
        assert not used.environments(client(None))
        assert [row.source for row in used.rows()] == [f"{project}/.venv"]


async def test_a_project_whose_disk_hangs_holds_nobody_up(
    tmp_path: Path, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with opened(tmp_path) as used:
        await used.use(mount_of(project), ".venv", None, taken=())
        before = used.environments(client(project))
        assert [each.problem for each in before] == [None]
        mended = threading.Event()
        monkeypatch.setattr(event_loop, "WAIT_S", 0.01)

        def signature(*_given: object) -> bool:
            return mended.wait()

        monkeypatch.setattr(reading, "signature", signature)
        assert used.environments(client(project)) == before, "as far as is known"
        mended.set()


@pytest.mark.parametrize("text", ["{", "[]", '{"version": 9, "agreements": []}', "[" * 100_000])
async def test_a_damaged_file_is_no_agreement(tmp_path: Path, project: Path, text: str) -> None:
    file = tmp_path / "state/nsm/project-environments.json"
    file.parent.mkdir(parents=True)
    file.write_text(text)
    async with opened(tmp_path) as used:
        assert not used.environments(client(project))
        assert file.with_name(file.name + ".broken").read_text() == text
        await used.use(mount_of(project), ".venv", None, ())
    rows = json.loads(file.read_text())["agreements"]
    bad = [{**rows[0], "path": "../x"}, {**rows[0], "project": "x"}, {**rows[0], "name": "\x1b"}]
    file.write_text(json.dumps({"version": 1, "agreements": [7, *bad, *rows]}))
    async with opened(tmp_path) as used:
        assert len(used.rows()) == 1


async def test_an_agreement_that_cannot_be_saved_is_not_used(tmp_path: Path, project: Path) -> None:
    (tmp_path / "state").write_text("a file where a directory should be")
    async with opened(tmp_path) as used:
        with pytest.raises(EnvironmentUnavailableError, match="cannot be saved"):
            await used.use(mount_of(project), ".venv", None, ())
        assert not used.environments(client(project))


@pytest.mark.parametrize("change", ["cfg", "link", "gone", "exchanged"])
async def test_another_interpreter_needs_another_agreement(
    tmp_path: Path, project: Path, change: str
) -> None:
    async with opened(tmp_path) as used:
        await used.use(mount_of(project), ".venv", None, ())
        assert used.environments(client(project))[0].problem is None
        told: list[None] = []
        used.changed = lambda: told.append(None)
        if change == "cfg":
            with (project / ".venv/pyvenv.cfg").open("a") as file:
                file.write("include-system-site-packages = true\n")
        elif change == "link":
            (project / ".venv/bin/python3").unlink()
            (project / ".venv/bin/python3").symlink_to("/project/mine")
        elif change == "gone":
            shutil.rmtree(project / ".venv")
        else:
            (project / ".venv").rename(project / "old")
            (project / ".venv").symlink_to(project / "old")
        (environment,) = used.environments(client(project))
        assert environment.problem is not None
        assert told
        assert used.preferred(client(project), "python") is None
        (row,) = [row for row in await used.find(mount_of(project)) if row.path == ".venv"]
        assert row.problem == environment.problem
        if change in ("cfg", "link"):
            assert "`nsm env use .venv` agrees" in environment.problem
            await used.use(mount_of(project), ".venv", None, ())
            assert used.environments(client(project))[0].problem is None
        else:
            with pytest.raises(BadRequestError):
                await used.use(mount_of(project), ".venv", None, ())


def hostile_python(folder: Path) -> Path:
    """A directory with a Python that leaves a file behind when it runs."""
    folder.mkdir(parents=True)
    for name in ("python3", "python3.11", "python"):
        program = folder / name
        program.write_text(f'#!/bin/sh\ntouch {folder}/ran\nexec /usr/bin/python3 "$@"\n')
        program.chmod(0o755)
    return folder


@pytest.mark.parametrize("place", ["project/.venv/bin", "project/tools", "elsewhere", "on-path"])
async def test_no_program_that_a_project_names_is_run(tmp_path: Path, place: str) -> None:
    project = tmp_path / "project"
    (project / ".venv").mkdir(parents=True)
    folder = hostile_python(tmp_path / place)
    (project / ".venv/pyvenv.cfg").write_text(f"home = {folder}\nversion = 3.11.2\n")
    if place == "on-path":  # an activated environment of the project
        folder = project / "on-path"
        (tmp_path / place).rename(folder)
        (project / ".venv/pyvenv.cfg").write_text(f"home = {folder}\nversion = 3.11.2\n")
    refused = "not on PATH" if place == "elsewhere" else "Python in the project"
    async with opened(tmp_path, search_path=f"{project}/on-path:{project}/tools:/usr/bin") as used:
        with pytest.raises(EnvironmentUnavailableError, match=refused):
            await used.use(mount_of(project), ".venv", None, ())
        assert used.rows() == []
    assert not (folder / "ran").exists()


@pytest.mark.parametrize(
    "home", ["/proc/self/root/usr/bin", "/dev/fd/../../usr/bin", "/etc/alternatives", "/"]
)
async def test_a_strange_way_to_a_python_is_refused(
    tmp_path: Path, project: Path, home: str
) -> None:
    cfg = project / ".venv/pyvenv.cfg"
    cfg.write_text(cfg.read_text().replace("home = /usr/bin", f"home = {home}"))
    async with opened(tmp_path, search_path="/usr/bin:/etc/alternatives") as used:
        with suppress(EnvironmentUnavailableError):
            await used.use(mount_of(project), ".venv", None, ())
        for environment in used.environments(client(project)):
            assert environment.binds == ()  # the way led to /usr/bin


async def test_links_to_a_python_are_followed_once(tmp_path: Path, project: Path) -> None:
    """Links that a box could exchange: nothing behind them is run or shown later."""
    python = tmp_path / "opt/python-3.11.2"
    (python / "bin").mkdir(parents=True)
    link = tmp_path / "opt/python-3.11"
    link.symlink_to(python)
    program = python / "bin/python3"
    version = [*map(int, read(mount_of(project), ".venv").version.split("."))]
    answer = {
        "version": version,
        "prefix": str(python),
        "base_prefix": str(python),
        "executable": str(program),
        "base_executable": str(program),
    }
    program.write_text(f"#!/bin/sh\necho '{json.dumps(answer)}'\n")
    program.chmod(0o755)
    cfg = project / ".venv/pyvenv.cfg"
    cfg.write_text(cfg.read_text().replace("home = /usr/bin", f"home = {link}/bin"))
    async with opened(tmp_path) as used:
        with pytest.raises(EnvironmentUnavailableError, match="not on PATH"):
            await used.use(mount_of(project), ".venv", None, ())
    async with opened(tmp_path, search_path=f"{python}/bin") as used:
        await used.use(mount_of(project), ".venv", None, ())
        (environment,) = used.environments(client(project))
        assert environment.agent_python == str(program)
        assert {(bind.source, bind.target) for bind in environment.binds} == {
            (str(python), str(python)),
            (str(python), str(link)),
        }


async def test_a_project_that_moved_is_another_one(tmp_path: Path, project: Path) -> None:
    async with opened(tmp_path) as used:
        await used.use(mount_of(project), ".venv", None, ())
        moved = tmp_path / "moved"
        project.rename(moved)
        assert not used.environments(client(moved))
        assert used.rows()[0].problem is not None
        moved.rename(project)
        assert used.environments(client(project))[0].problem is None


async def test_agreements_made_at_once_are_all_kept(tmp_path: Path, project: Path) -> None:
    make_project_venv(project / "venv")
    async with opened(tmp_path) as used, trio.open_nursery() as nursery:
        for path, name in ((".venv", "a"), ("venv", "b"), (".venv", "c")):
            nursery.start_soon(used.use, mount_of(project), path, name, ())
    async with opened(tmp_path) as used:
        names = {row.name for row in used.rows()}
    assert len(names) == 2
    assert "b" in names
