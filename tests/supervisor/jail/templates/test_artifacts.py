"""Forks of templates that artifacts bring along, which are older or newer than the supervisor."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from artifact_files import environment_of, write_artifact, write_older, write_run_only
from nsmd.jail import process, starting
from nsmd.jail.program_code import source_of
from nsmd.jail.templates import TemplateLauncher, open_templates
from nsmd.model.values import Environment
from realjail import environments, is_fork, mount_of, needs_bwrap, open_cold, open_session

pytestmark = [pytest.mark.jail, needs_bwrap]


@asynccontextmanager
async def open_launcher(folder: Path) -> AsyncGenerator[TemplateLauncher]:
    async with open_cold(str(folder / "home")) as cold, open_templates(cold) as made:
        assert isinstance(made, TemplateLauncher)
        yield made


async def test_sessions_are_forks_of_the_artifacts_template(folder: Path) -> None:
    one = environment_of(write_artifact(folder, "one"))
    bash = environment_of(write_artifact(folder, "two", interpreter="bash"))
    (folder / "project").mkdir()
    (folder / "project" / "here").touch()
    mount = mount_of(folder / "project")
    async with open_launcher(folder) as forking:
        for _ in range(2):
            async with open_session(one, mount, launcher=forking) as session:
                assert is_fork(session.jail)
                told = await session.run("import os; print(os.listdir('/project'), os.getcwd())")
                assert told.stdout == "['here'] /workspace\n"
                assert (await session.run("open('/project/x', 'w')")).exit_code == 1
        async with open_session(bash, launcher=forking) as session:
            assert is_fork(session.jail)
            assert (await session.run("echo $((6 * 7))")).stdout == "42\n"
        assert len(forking.templates) == 2
        assert forking.reasons == {}


async def test_older_ones_start_cold_and_say_why(folder: Path) -> None:
    older = environment_of(write_older(folder, "older"))
    once = environment_of(write_run_only(folder, "once"))
    without = environment_of(write_artifact(folder, "without", template=False))
    async with open_launcher(folder) as forking:
        for environment in (older, once, without, environments()["python"]):
            async with open_session(environment, launcher=forking) as session:
                assert (await session.run("print(6 * 7)")).stdout == "42\n"
        assert forking.reasons == {
            "older": "it is an older artifact without templates",
            "once": "it is an older artifact without templates",
            "without": "it is an artifact without templates",
        }


def replace_in(artifact: Path, name: str, change: Callable[[str], str]) -> Environment:
    """An artifact whose agent or template is of another version than ours."""
    source = source_of(f"sandbox_{name}").decode()
    changed = change(source)
    assert changed != source
    (artifact / "lib" / name).write_text(changed)
    return environment_of(artifact)


async def test_a_template_of_another_protocol_is_left_alone(folder: Path) -> None:
    newer = replace_in(
        write_artifact(folder),
        "template",
        lambda text: text.replace("PROTOCOL = 2", "PROTOCOL = 3"),
    )
    async with open_launcher(folder) as forking:
        async with open_session(newer, launcher=forking) as session:
            assert not is_fork(session.jail)
            assert (await session.run("print(6 * 7)")).stdout == "42\n"
        assert "protocol 3" in forking.reasons["science"]
        assert forking.templates == []


async def test_an_agent_of_another_version_is_used_as_far_as_it_goes(folder: Path) -> None:
    """The agent's own capabilities decide, not the supervisor's version."""

    def age(text: str) -> str:
        for capability in ("files", "complete", "check", "setup", "stream.late", "limits"):
            text = text.replace(f'    "{capability}",\n', "")
        return text.replace('"execute.result",\n', '"execute.result",\n    "teleport",\n')

    older = replace_in(write_artifact(folder), "agent", age)
    async with open_launcher(folder) as forking, open_session(older, launcher=forking) as session:
        assert is_fork(session.jail)
        assert (await session.run("print(6 * 7)")).stdout == "42\n"


@pytest.mark.parametrize(
    ("script", "said"),
    [
        (None, "not there any more"),
        ("#!/bin/bash\necho no such luck >&2\nexit 1\n", "no such luck"),
        ("#!/bin/bash\necho nonsense >&0\ncat\n", "has not told of a jail"),
    ],
)
async def test_sessions_start_cold_without_an_artifacts_template(
    script: str | None, said: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(starting, "INFO_TIMEOUT_S", 1.0)
    monkeypatch.setattr(process, "STARTER_GRACE_S", 0.1)
    artifact = write_artifact(folder)
    environment = environment_of(artifact)
    program = artifact / "bin" / "template-run"
    program.unlink()
    if script is not None:
        program.write_text(script)
        program.chmod(0o755)
    async with open_launcher(folder) as forking:
        async with open_session(environment, launcher=forking) as session:
            assert not is_fork(session.jail)
            assert (await session.run("print(6 * 7)")).stdout == "42\n"
        assert said in forking.reasons["science"]
