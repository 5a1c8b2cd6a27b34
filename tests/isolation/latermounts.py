"""File system mounted on the host below a project, and what a session shows of it.

Runs in a mount namespace of its own, whose mounts are shared as systemd has them:
`unshare --mount --propagation shared python -m isolation.latermounts ...` prints what could be
written by a session from before and one from after.
"""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Mapping
from pathlib import Path

import trio

from isolation.stage import Stage, open_stage
from isolation.weaken import MOUNTS_AS_THEY_COME, Weakness
from isolation.weakjails import WeakLauncher, forking
from nsmd.jail import BwrapLauncher
from realjail import LiveSession, environments, jail_spec, launched, new_launcher, talking_to

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


if __name__ == "__main__":
    trio.run(_main, sys.argv[1])
