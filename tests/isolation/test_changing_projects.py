"""Projects that change under code: directories that their owner moves, links that are exchanged.

The kernel resolves `..` up to the root of a mount. A directory that is moved out from below that
root has no such end above it, see path_resolution(7) and the kernel's `path_connected`.
"""

from __future__ import annotations

import ctypes
import os
import threading
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import pytest

from isolation.probe import Kind
from isolation.rooms import HostRoom
from isolation.stage import CANARY, open_stage
from isolation.weakjails import BOTH_KINDS
from nsm.wire.errors import BadProjectError, StartFailedError
from nsmd.jail.templates import open_templates
from nsmd.manager.projects import check_project
from nsmd.model.values import Environment
from realjail import (
    environments,
    jail_spec,
    launched,
    needs_bwrap,
    new_launcher,
    open_directory,
    talking_to,
)

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


@pytest.mark.parametrize("leaves", [True, False], ids=["leaves", "stays"])
@BOTH_KINDS
async def test_a_directory_that_leaves_the_project_has_no_way_up(
    kind: Kind, leaves: bool, known: dict[str, Environment]
) -> None:
    """The same climbing finds what is beside a directory that was moved within the project."""
    with open_stage() as stage:
        room = HostRoom(kind=kind, stage=stage, known=known)
        project = Path(stage.project.path)
        if not leaves:
            (project / "secret").write_text(CANARY)
        async with (
            room.launcher() as launcher,
            launched(launcher, jail_spec(known["python"], stage.project)) as jail,
            talking_to(jail, "python") as session,
        ):
            assert (await session.run(HOLD)).exit_code == 0
            place = Path(stage.directory) if leaves else project
            os.rename(project / "victims", place / "moved")
            told = (await session.run(CLIMB)).stdout.splitlines()
    assert (CANARY in told) is not leaves
    if leaves:  # it still has what it was given, and the way from there would be the right one
        assert told[-1] == "True"
    else:
        assert told[0] == CANARY


ROUNDS = 4
RENAME_EXCHANGE = 2
AT_FDCWD = -100


@contextmanager
def exchanging(one: Path, other: Path) -> Generator[None]:
    """While the block lasts, two names change places as fast as that goes."""
    libc = ctypes.CDLL(None, use_errno=True)
    over = threading.Event()

    def exchange() -> None:
        names = os.fsencode(one), os.fsencode(other)
        while not over.is_set():
            libc.renameat2(AT_FDCWD, names[0], AT_FDCWD, names[1], RENAME_EXCHANGE)

    thread = threading.Thread(target=exchange)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


@pytest.mark.parametrize("step", ["project", "way"])
@pytest.mark.parametrize("forked", [False, True], ids=["cold", "forked"])
async def test_a_project_that_is_exchanged_all_the_time(step: str, *, forked: bool) -> None:
    """Exchange it for a link to a secret, in its own place or on the way to it."""
    environment = environments()["bash"]
    seen: set[str] = set()
    refused = 0
    with open_directory() as base:
        for place in ("way", "secret"):
            (base / place / "project").mkdir(parents=True)
        (base / "way/project/mine").touch()
        (base / "secret/project/theirs").touch()
        leading = base / ("way" if step == "way" else "way/project")
        target = base / ("secret" if step == "way" else "secret/project")
        link = base / "link"
        link.symlink_to(target)
        async with open_templates(new_launcher(), enabled=forked) as launcher:
            for _ in range(ROUNDS):
                with exchanging(leading, link):
                    try:
                        # Whatever is found, it is what is then shown.
                        mount = check_project(str(base / "way/project"), "/project", "/nonexistent")
                        async with (
                            launched(launcher, jail_spec(environment, mount)) as jail,
                            talking_to(jail, "bash") as session,
                        ):
                            found = (await session.run("echo /project/*")).stdout.strip()
                    except (BadProjectError, StartFailedError):
                        refused += 1
                        continue
                honest = "theirs" if mount.path.startswith(f"{base}/secret") else "mine"
                assert found == f"/project/{honest}", (mount.path, found)
                seen.add(honest)
    assert seen or refused
