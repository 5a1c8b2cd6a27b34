"""Jails that artifacts make, with those of `artifact_files` really started."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio

from artifact_files import OlderWrapper, environment_of, write_artifact, write_older, write_run_only
from nsmd.jail.artifact import ArtifactLauncher
from nsmd.jail.user import JailUser
from nsmd.settings import DEFAULT_JAIL_UID
from nsmd.values import SessionLimits
from realjail import (
    needs_bwrap,
    open_directory,
    open_session,
)

pytestmark = [pytest.mark.jail, needs_bwrap]


@asynccontextmanager
async def open_launcher(folder: Path) -> AsyncGenerator[ArtifactLauncher]:
    async with trio.open_nursery() as nursery:
        user = JailUser(DEFAULT_JAIL_UID)
        yield ArtifactLauncher(user, str(folder / "home"), SessionLimits(), nursery)
        nursery.cancel_scope.cancel()


@pytest.fixture
def folder() -> Generator[Path]:
    with open_directory() as made:
        yield made


async def test_a_session_of_schema_1_answers(folder: Path) -> None:
    environment = environment_of(write_artifact(folder))
    async with open_launcher(folder) as launcher, open_session(environment, launcher=launcher) as s:
        outcome = await s.run("import os; print(os.getcwd(), os.getuid(), os.uname().nodename)")
    assert outcome.stdout == "/workspace 1000 nsm\n"


@pytest.mark.parametrize("wrapper", ["exec", "trap", "child", "lasting"])
async def test_a_session_of_an_older_one_answers(folder: Path, wrapper: OlderWrapper) -> None:
    environment = environment_of(write_older(folder, wrapper=wrapper))
    async with open_launcher(folder) as launcher, open_session(environment, launcher=launcher) as s:
        outcome = await s.run("import os; print(os.getcwd())")
    assert outcome.stdout == "/workspace\n"


async def test_a_run_only_one_answers(folder: Path) -> None:
    environment = environment_of(write_run_only(folder))
    async with open_launcher(folder) as launcher, open_session(environment, launcher=launcher) as s:
        outcome = await s.run("import os; print(os.getcwd())")
    assert outcome.stdout == "/workspace\n", outcome
