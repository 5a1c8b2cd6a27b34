"""Directories and links that are exchanged while a jail is made: never another one is shown."""

from __future__ import annotations

import ctypes
import os
import threading
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import pytest

from nsm.wire.errors import BadProjectError, StartFailedError
from nsmd.jail.templates import open_templates
from nsmd.manager.projects import check_project
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
