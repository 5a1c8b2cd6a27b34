"""Finding 7: the kernel counts pipes, inotify instances and more by user, across jails.

Bounding them needs cgroups and filters. Until then a jail that takes them all must not keep another
one from starting and answering.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager

import pytest

from isolation.probe import Kind
from isolation.weakjails import forking
from nsmd.jail import Launcher
from nsmd.jail import launcher as jail_launcher
from nsmd.model.values import Environment
from realjail import environments, needs_bwrap, new_launcher, open_session
from sandbox.template import mounts

pytestmark = [pytest.mark.jail, pytest.mark.alone, needs_bwrap]

HOG = """
import ctypes, fcntl, os
F_SETPIPE_SZ = 1031
held = []
for _ in range(200):
    pipe = os.pipe()
    held.append(pipe)
    try:
        fcntl.fcntl(pipe[0], F_SETPIPE_SZ, 1 << 20)
    except OSError:
        pass
libc = ctypes.CDLL(None, use_errno=True)
watches = 0
while libc.inotify_init() >= 0:
    watches += 1
print(len(held), watches)
"""

SMALL_PIPES = """
import ctypes, fcntl, os
F_GETPIPE_SZ = 1032
print(fcntl.fcntl(os.pipe()[0], F_GETPIPE_SZ), ctypes.CDLL(None).inotify_init())
"""

TERMINALS = """
import os
held = []
try:
    while True:
        held.append(os.openpty())
except OSError as error:
    print(len(held), error.strerror)
"""

BIG_OUTPUT = {
    "python": "print('x' * 300_000)",
    "bash": "head -c 300000 /dev/zero | tr '\\0' x; echo",
    "node": "console.log('x'.repeat(300000))",
}


@pytest.fixture(scope="module")
def known() -> dict[str, Environment]:
    return environments()


@asynccontextmanager
async def launcher_of(kind: Kind) -> AsyncGenerator[Launcher]:
    if kind == "cold":
        yield new_launcher()
    else:
        async with forking(new_launcher()) as launcher:
            yield launcher
            assert launcher.reasons == {}


@pytest.mark.parametrize("kind", ["cold", "forked"])
async def test_a_hog_does_not_keep_others_from_working(
    kind: Kind, known: dict[str, Environment]
) -> None:
    async with (
        launcher_of(kind) as launcher,
        open_session(known["python"], launcher=launcher) as hog,
    ):
        pipes, watches = map(int, (await hog.run(HOG)).stdout.split())
        assert pipes > 8
        assert watches > 0
        async with open_session(known["python"], launcher=launcher) as victim:
            size, watch = map(int, (await victim.run(SMALL_PIPES)).stdout.split())
            # The hog is felt, or this test shows nothing.
            assert size <= 8192
            assert watches == 16
            assert watch >= 0
        for environment in known.values():
            if environment.problem is None:
                async with open_session(environment, launcher=launcher) as session:
                    outcome = await session.run(BIG_OUTPUT[environment.interpreter])
                    assert outcome.exit_code == 0
                    assert len(outcome.stdout) == 300_001
        assert (await hog.run("print(len(held))")).stdout == f"{pipes}\n"


async def unlimited(_: int, _inodes: Mapping[str, int]) -> None:
    """Set no limits."""


async def test_without_the_limit_a_cold_jail_takes_all_of_inotify(
    known: dict[str, Environment], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jail_launcher, "limit_namespaces", unlimited)
    async with open_session(known["python"], launcher=new_launcher()) as hog:
        assert int((await hog.run(HOG)).stdout.split()[1]) > 16
        async with open_session(known["python"], launcher=new_launcher()) as victim:
            assert (await victim.run(SMALL_PIPES)).stdout.split()[1] == "-1"


async def test_terminals_of_a_fork_are_bounded(known: dict[str, Environment]) -> None:
    async with (
        launcher_of("forked") as launcher,
        open_session(known["python"], launcher=launcher) as hog,
    ):
        told = (await hog.run(TERMINALS)).stdout
    assert told == f"{mounts.TERMINALS} No space left on device\n"
