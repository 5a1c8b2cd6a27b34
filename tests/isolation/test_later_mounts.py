"""Mounts that the host makes below a project while sessions run: sessions cannot write to them.

As a program, in a mount namespace of its own whose mounts are shared as systemd has them, this file
prints what could be written by a session from before and one from after:
`unshare --mount --propagation shared python -m isolation.test_later_mounts WEAKNESS`.
"""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest
import trio

from isolation.stage import Stage, open_stage
from isolation.weaken import MOUNTS_AS_THEY_COME, Weakness
from isolation.weakjails import WeakLauncher, forking
from nsmd.jail import BwrapLauncher
from realjail import (
    SYSTEM_PATH,
    LiveSession,
    environments,
    jail_spec,
    launched,
    needs_bwrap,
    new_launcher,
    talking_to,
)

pytestmark = [pytest.mark.jail, needs_bwrap, pytest.mark.root]

BEFORE, AFTER = "before", "after"

WEAKNESSES: Mapping[str, Weakness | None] = {
    "none": None,
    "private": Weakness(template=MOUNTS_AS_THEY_COME),
    "slave": Weakness(template='space["keep_mounts"] = lambda: None'),
}
"""Weaknesses in place of `keep_mounts`."""

WRITE = """
import os
try:
    os.close(os.open("/project/below/new", os.O_CREAT | os.O_WRONLY))
    print(os.stat("/project/below").st_dev != os.stat("/project").st_dev)
except OSError as error:
    print(error.strerror)
"""


def _mount(target: Path) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.mount(b"later", os.fsencode(target), b"tmpfs", 0, b"mode=0777") < 0:
        raise OSError(ctypes.get_errno(), "mount")


def _launcher(name: str, stage: Stage) -> BwrapLauncher:
    weakness = WEAKNESSES[name]
    return new_launcher() if weakness is None else WeakLauncher(weakness, stage)


async def _writes(session: LiveSession) -> bool:
    said = (await session.run(WRITE)).stdout.strip()
    assert said in {"True", "Read-only file system"}, said
    return said == "True"


async def _main(name: str) -> None:
    python = environments()["python"]
    with open_stage() as stage:
        below = Path(stage.project.path, "below")
        below.mkdir()
        below.chmod(0o777)
        spec = jail_spec(python, stage.project)
        written: list[str] = []
        async with forking(_launcher(name, stage)) as launcher:
            async with launched(launcher, spec) as jail, talking_to(jail, "python") as first:
                _mount(below)
                if await _writes(first):
                    written.append(BEFORE)
            async with launched(launcher, spec) as jail, talking_to(jail, "python") as second:
                if await _writes(second):
                    written.append(AFTER)
            assert launcher.reasons == {}
        _unmount(below)
    print(*written)


def _unmount(target: Path) -> None:
    assert ctypes.CDLL(None).umount2(os.fsencode(target), 0) == 0


def written_by(weakness: str) -> set[str]:
    """Find the sessions that could write to a file system mounted below their project."""
    told = subprocess.run(
        [
            *("unshare", "--mount", "--propagation", "shared"),
            *(sys.executable, "-m", "isolation.test_later_mounts", weakness),
        ],
        capture_output=True,
        text=True,
        env={"PATH": SYSTEM_PATH, "PYTHONPATH": os.pathsep.join(sys.path)},
        check=False,
    )
    assert told.returncode == 0, told.stderr
    return set(told.stdout.split())


def test_later_mounts_are_read_only_or_not_there() -> None:
    assert written_by("none") == set()


@pytest.mark.slow
def test_a_private_namespace_is_not_enough() -> None:
    """The template's jail has got the mount, and hands it on."""
    assert written_by("private") == {AFTER}


@pytest.mark.slow
def test_without_either_it_is_everybody_s() -> None:
    assert written_by("slave") == {BEFORE, AFTER}


if __name__ == "__main__":
    trio.run(_main, sys.argv[1])
