"""Directories of the project that code holds open while their owner moves them: no way to what is
beside the project.

The kernel resolves `..` up to the root of a mount. A directory that is moved out from below that
root has no such end above it, see path_resolution(7) and the kernel's `path_connected`.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from isolation.probe import Kind
from isolation.rooms import HostRoom
from isolation.stage import CANARY, open_stage
from nsmd.model.values import Environment
from realjail import jail_spec, launched, needs_bwrap, talking_to

pytestmark = [pytest.mark.jail, needs_bwrap]

HOLD = """
import os
held = os.open("/project/victims", os.O_PATH | os.O_DIRECTORY)
os.chdir("/project/victims")
"""

CLIMB = """
def read(*way):
    fd = os.dup(held)
    try:
        for step in way[:-1]:
            fd, before = os.open(step, os.O_PATH | os.O_DIRECTORY, dir_fd=fd), fd
            os.close(before)
        with open(os.open(way[-1], os.O_RDONLY, dir_fd=fd)) as file:
            return file.read()
    except OSError as error:
        return error.strerror
    finally:
        os.close(fd)
def from_here(way):
    try:
        with open(way) as file:
            return file.read()
    except OSError as error:
        return error.strerror
print(read("..", "secret"), read("..", "..", "secret"), from_here("../secret"), sep="\\n")
print("one" in os.listdir("/proc/self/cwd"))
"""


@pytest.mark.parametrize("kind", ["cold", "forked"])
async def test_a_directory_that_leaves_the_project(
    kind: Kind, known: dict[str, Environment]
) -> None:
    with open_stage() as stage:
        room = HostRoom(kind=kind, stage=stage, known=known)
        outside = Path(stage.directory)
        async with (
            room.launcher() as launcher,
            launched(launcher, jail_spec(known["python"], stage.project)) as jail,
            talking_to(jail, "python") as session,
        ):
            assert (await session.run(HOLD)).exit_code == 0
            os.rename(outside / "project" / "victims", outside / "moved")
            told = (await session.run(CLIMB)).stdout.splitlines()
    assert CANARY not in told
    # It still has what it was given, and the way from there would be the right one.
    assert told[-1] == "True"


@pytest.mark.parametrize("kind", ["cold", "forked"])
async def test_a_directory_that_stays_has_a_way_up(
    kind: Kind, known: dict[str, Environment]
) -> None:
    """The same climbing finds what is beside a directory that was moved within the project."""
    with open_stage() as stage:
        room = HostRoom(kind=kind, stage=stage, known=known)
        project = Path(stage.project.path)
        (project / "secret").write_text(CANARY)
        async with (
            room.launcher() as launcher,
            launched(launcher, jail_spec(known["python"], stage.project)) as jail,
            talking_to(jail, "python") as session,
        ):
            await session.run(HOLD)
            os.rename(project / "victims", project / "moved")
            told = (await session.run(CLIMB)).stdout.splitlines()
    assert told[0] == CANARY
