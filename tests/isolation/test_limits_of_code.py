"""Limits that the host's user may have and code in a session must not; files without end."""

from __future__ import annotations

import resource
from collections.abc import Generator, Mapping
from contextlib import contextmanager

import pytest

from isolation.probe import Kind
from isolation.weakjails import BOTH_KINDS, launcher_of, said, session_of
from nsmd.jail import launcher as jail_launcher
from nsmd.model.values import Environment
from realjail import needs_bwrap, new_launcher, open_session
from sandbox.template import mounts

pytestmark = [pytest.mark.jail, needs_bwrap]


@contextmanager
def generous_host(wanted: Mapping[int, int]) -> Generator[None]:
    """The limits of whoever starts jails, raised."""
    before = {kind: resource.getrlimit(kind) for kind in wanted}
    try:
        for kind, value in wanted.items():
            hard = before[kind][1]
            raised = hard if hard == resource.RLIM_INFINITY else max(value, hard)
            try:
                resource.setrlimit(kind, (value, raised))
            except ValueError:
                pytest.skip("not here: raising limits takes CAP_SYS_RESOURCE")
        yield
    finally:
        for kind, limits in before.items():
            resource.setrlimit(kind, limits)


CORE = """
import os, resource, signal
print(*resource.getrlimit(resource.RLIMIT_CORE))
pid = os.fork()
if pid == 0:
    os.kill(os.getpid(), signal.SIGQUIT)
print(os.WCOREDUMP(os.waitpid(pid, 0)[1]))
"""


@BOTH_KINDS
async def test_the_host_s_program_for_crashes_is_not_run(kind: Kind) -> None:
    """0 keeps the kernel from writing core files and no more; 1 is read as "none" (core(5))."""
    with generous_host({resource.RLIMIT_CORE: 1 << 20}):
        assert await said(kind, "python", CORE) == "1 1\nFalse\n"


RLIMIT_NICE = 13
"""`resource` has no name for it."""

FIRST = f"""
import os, resource
print(*resource.getrlimit(resource.RLIMIT_RTPRIO), *resource.getrlimit({RLIMIT_NICE}))
def tried(action, *arguments):
    pid = os.fork()
    if pid == 0:
        try:
            action(*arguments)
        except OSError as error:
            os._exit(error.errno)
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
print(tried(os.sched_setscheduler, 0, os.SCHED_FIFO, os.sched_param(1)), tried(os.nice, -5))
"""


@BOTH_KINDS
async def test_nobody_comes_before_the_machine_s_own(kind: Kind) -> None:
    """A host's user who works with sound may take a processor for himself."""
    with generous_host({resource.RLIMIT_RTPRIO: 10, RLIMIT_NICE: 30}):
        assert await said(kind, "python", FIRST) == "0 0 0 0\n1 1\n"


# Files that are hard to handle.

TREES = r"""
import os
def deep(depth):
    "Deeper than any path may be long."
    here = os.open("/workspace", os.O_RDONLY)
    for _ in range(depth):
        os.mkdir("d" * 100, dir_fd=here)
        below = os.open("d" * 100, os.O_RDONLY, dir_fd=here)
        os.close(here)
        here = below
    os.close(here)
def named(name):
    with open(b"/workspace/" + name, "w"):
        pass
deep(1000)
os.mkfifo("/workspace/fifo")
os.symlink("loop", "/workspace/loop")
os.symlink("/proc/self/root/" * 200, "/workspace/far")
for name in (b"a\nb", b"\x1b[2J", b"\xff\xfe", b"-rf", b"n" * 255, b" ", b"*"):
    named(name)
with open("/workspace/sparse", "wb") as file:
    file.truncate(1 << 40)
os.mkdir("/tmp/many")
made = 0
try:
    while made < 20_000:
        os.close(os.open(f"/tmp/many/{made}", os.O_CREAT))
        made += 1
except OSError as error:
    print(error.strerror)
os.mkdir("/workspace/closed", 0)
os.chdir("/workspace/" + "/".join(["d" * 100] * 30))
"""

LEFT = """
import os, subprocess
os.chdir("/workspace")
print(len(os.listdir(b"/workspace")), os.stat("/workspace/sparse").st_blocks)
print(subprocess.run(["sh", "-c", "echo child"], capture_output=True).stdout)
"""


@BOTH_KINDS
async def test_a_session_survives_its_own_files(kind: Kind) -> None:
    async with session_of(kind, "python") as session:
        made = await session.run(TREES)
        left = await session.run(LEFT)
    assert not made.stderr, made.stderr
    assert made.stdout == "No space left on device\n", "files are limited in number, too"
    assert left.stdout == "13 0\nb'child\\n'\n", left.stderr


# What the kernel counts by user, across jails: pipes, inotify instances and more. Bounding them
# needs cgroups and filters. Until then a jail that takes them all must not keep another one from
# starting and answering.

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


@pytest.mark.alone
@BOTH_KINDS
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


async def unlimited(_: int, _inodes: Mapping[str, int], *, named_hosts: bool) -> None:
    """Set no limits."""


@pytest.mark.alone
async def test_without_the_limit_a_cold_jail_takes_all_of_inotify(
    known: dict[str, Environment], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jail_launcher, "limit_namespaces", unlimited)
    async with open_session(known["python"], launcher=new_launcher()) as hog:
        assert int((await hog.run(HOG)).stdout.split()[1]) > 16
        async with open_session(known["python"], launcher=new_launcher()) as victim:
            assert (await victim.run(SMALL_PIPES)).stdout.split()[1] == "-1"


@pytest.mark.alone
async def test_terminals_of_a_fork_are_bounded(known: dict[str, Environment]) -> None:
    async with (
        launcher_of("forked") as launcher,
        open_session(known["python"], launcher=launcher) as hog,
    ):
        told = (await hog.run(TERMINALS)).stdout
    assert told == f"{mounts.TERMINALS} No space left on device\n"
