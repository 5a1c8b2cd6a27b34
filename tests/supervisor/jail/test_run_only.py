"""Artifacts that can only run one piece of code, driven as a session drives an agent."""

from __future__ import annotations

import errno
import os
from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import trio

from artifact_files import environment_of, write_artifact, write_run_only
from nsm.wire.errors import BadProjectError
from nsmd.agent_link.frames import AgentFrame, ErrorFrame, OtherFrame, ResultFrame
from nsmd.agent_link.link import AgentLink
from nsmd.jail import run_only
from nsmd.model.values import Environment, Outcome, ProjectMount
from processes import Watched, tree
from realjail import (
    ANSWER_TIMEOUT_S,
    jail_spec,
    launched,
    mount_of,
    needs_bwrap,
    open_cold,
    open_directory,
)

pytestmark = [pytest.mark.jail, needs_bwrap]


@pytest.fixture
def folder() -> Generator[Path]:
    with open_directory() as made:
        yield made


class Talk:
    """Frames to and from what stands in for an agent."""

    def __init__(self, link: AgentLink) -> None:
        self.link = link
        self._count = 0

    def execute(self, code: str, **fields: Any) -> str:
        self._count += 1
        id_ = str(self._count)
        self.link.post({"type": "execute", "id": id_, "code": code, **fields})
        return id_

    async def receive(self) -> AgentFrame:
        with trio.fail_after(ANSWER_TIMEOUT_S):
            return await self.link.receive()

    async def run(self, code: str, **fields: Any) -> Outcome:
        id_ = self.execute(code, **fields)
        frame = await self.receive()
        assert isinstance(frame, ResultFrame), frame
        assert frame.id == id_
        return frame.outcome


@asynccontextmanager
async def talking(
    environment: Environment, folder: Path, project: ProjectMount | None = None
) -> AsyncGenerator[Talk]:
    """Nothing of what was started in it is left after the block."""
    before = set(os.listdir("/proc/self/fd"))
    async with open_cold(str(folder / "home")) as launcher, trio.open_nursery() as nursery:
        async with launched(launcher, jail_spec(environment, project)) as jail:
            link = AgentLink(jail.socket, nursery)
            ready = await link.handshake({})
            assert ready.capabilities == {"execute.timeout", "execute.result", "interrupt"}
            yield Talk(link)
            link.close()
        nursery.cancel_scope.cancel()
    assert Path(f"/proc/self/task/{os.getpid()}/children").read_text() == ""
    assert set(os.listdir("/proc/self/fd")) == before


async def test_each_execution_has_a_jail_of_its_own(folder: Path) -> None:
    async with talking(environment_of(write_run_only(folder)), folder) as talk:
        first = await talk.run("x = 1; open('/workspace/file', 'w'); print('first')")
        assert (first.stdout, first.stderr, first.exit_code) == ("first\n", "", 0)
        assert first.duration_s > 0
        second = await talk.run("import os, sys; print(os.listdir('/workspace')); print(x)")
        assert second.stdout == "[]\n"
        assert "NameError" in second.stderr
        assert second.exit_code == 1


async def test_the_project_is_shown(folder: Path) -> None:
    environment = environment_of(write_run_only(folder, interpreter="bash"))
    project = folder / "project"
    project.mkdir()
    (project / "here").touch()
    mount = mount_of(project, "/srv/it")
    async with talking(environment, folder, mount) as talk:
        assert (await talk.run("ls /srv/it")).stdout == "here\n"
        project.rename(folder / "elsewhere")
        project.mkdir()
        talk.execute("ls /srv/it")
        answer = await talk.receive()
        assert isinstance(answer, ErrorFrame)
        assert "was replaced" in answer.message
    async with open_cold(str(folder / "home")) as launcher:
        with pytest.raises(BadProjectError, match="was replaced"):
            await launcher.launch(jail_spec(environment, mount))


ENDLESS = "import os\nprint('begun', flush=True)\nos.fork(); os.fork()\nwhile True: pass"


@pytest.mark.parametrize("wrapper", ["trap", "lasting"])
async def test_the_time_limit_ends_everything(wrapper: Any, folder: Path) -> None:
    environment = environment_of(write_run_only(folder, wrapper=wrapper))
    async with talking(environment, folder) as talk:
        outcome = await talk.run(ENDLESS, timeout_s=0.5, grace_s=2.0)
        assert outcome.timed_out
        assert outcome.exit_code == 124
        assert outcome.stdout == "begun\n"
        assert (await talk.run("print(1)")).stdout == "1\n"


async def test_an_interrupt_ends_what_runs(folder: Path) -> None:
    async with talking(environment_of(write_run_only(folder)), folder) as talk:
        id_ = talk.execute(ENDLESS, timeout_s=30)
        talk.link.post({"type": "interrupt", "id": "other"})
        assert await talk.receive() == OtherFrame(type="idle")
        talk.execute("print(2)")
        busy = await talk.receive()
        assert isinstance(busy, ErrorFrame)
        assert busy.id == "2"
        talk.link.post({"type": "interrupt", "id": id_})
        frame = await talk.receive()
        assert isinstance(frame, ResultFrame)
        assert frame.outcome.interrupted
        assert frame.outcome.exit_code == 130
        assert not frame.outcome.timed_out


async def test_processes_that_code_leaves_behind_are_ended(folder: Path) -> None:
    """A jail of schema 1 has no parent-death signal: it is ended by what bwrap tells of it."""
    environment = environment_of(write_artifact(folder, interpreter="bash"))
    assert environment.artifact is not None
    alone = replace(environment, artifact=replace(environment.artifact, session_run=None))
    marker = folder / "marker"
    marker.mkdir()
    async with talking(alone, folder, mount_of(marker)) as talk:
        outcome = await talk.run("setsid tail -f /dev/null >/dev/null 2>&1 & echo $!")
        assert outcome.exit_code == 0, outcome
        for child in list(tree(os.getpid()))[1:]:
            with Watched([child]) as one:
                await one.all_ended()

    # `talking` looks for what is left


async def test_without_descriptors_the_call_fails_and_nothing_else(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def none_left(pid: int, root: int) -> int | None:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    environment = environment_of(write_artifact(folder))
    assert environment.artifact is not None
    environment = replace(environment, artifact=replace(environment.artifact, session_run=None))
    async with talking(environment, folder) as talk:
        with monkeypatch.context() as patch:
            patch.setattr(run_only, "open_descendant", none_left)
            id_ = talk.execute("print(1)")
            answer = await talk.receive()
            assert isinstance(answer, ErrorFrame)
            assert (answer.id, "Too many open files" in answer.message) == (id_, True)
        assert (await talk.run("print(1)")).stdout == "1\n"
