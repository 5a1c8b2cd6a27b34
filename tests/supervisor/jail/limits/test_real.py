"""Limits that the kernel keeps: control groups version 2, delegated by `systemd --user`.

Run as an ordinary user with a manager of its own, or as root below systemd; `make test-vm` does.
Each test that cannot says so, unless NSM_TEST_GROUPS=1 says that it must be able to.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import NoReturn

import pytest
import trio

import nsm
from agent_process import becomes_true
from cgroup_world import ALL_FILES_MB, MEMORY_MB, PROCESSES, open_world
from e2e_support import supervisor, variables_for
from nsmd.jail.limits import LimitEnforcer, find_enforcer
from nsmd.jail.limits import tree as files
from nsmd.jail.limits.group import AGENT_MB, PART
from nsmd.jail.limits.tree import GroupTree
from nsmd.model.values import LimitEvent, SessionLimits
from realjail import needs_bwrap

pytestmark = [pytest.mark.jail, needs_bwrap]

MUST = os.environ.get("NSM_TEST_GROUPS") == "1"

PROGRAM_MB = MEMORY_MB + AGENT_MB
GROUP_MB = PROGRAM_MB + ALL_FILES_MB
"""Limits of a session in `world`: of its programs, and of everything."""

WAIT_S = 120.0
LIMITS = SessionLimits(processes=PROCESSES)


def skip(why: str) -> NoReturn:
    if MUST:
        pytest.fail(why)
    pytest.skip(f"not here: {why}")


@pytest.fixture(scope="session")
def tree() -> GroupTree:
    """Groups of this process's own: it moves into a scope, where it stays."""
    enforcer = trio.run(find_enforcer, LIMITS, os.environ)
    if enforcer.tree is None:
        skip(enforcer.enforcement.why)
    return enforcer.tree


@pytest.fixture
def enforcer(tree: GroupTree) -> LimitEnforcer:
    return LimitEnforcer(tree, limits=LIMITS)


def the_only(events: tuple[LimitEvent, ...], kind: str) -> LimitEvent:
    assert [event.kind for event in events] == [kind], events
    return events[0]


def manager_flag() -> str:
    return "--system" if os.geteuid() == 0 else "--user"


def group_of(pid: int) -> str:
    """The directory of a process's group."""
    text = Path(f"/proc/{pid}/cgroup").read_text().strip().splitlines()[-1]
    return "/sys/fs/cgroup" + text.removeprefix("0::")


SHARED_LOOP = """
import mmap
held = []
while True:
    piece = mmap.mmap(-1, 8 << 20)
    for at in range(0, len(piece), 4096):
        piece[at] = 1
    held.append(piece)
"""
"""Shared memory: RLIMIT_DATA does not count it."""

GREEDY_CHILD = """
import os
pid = os.fork()
if pid == 0:
    exec(LOOP)
    os._exit(0)
print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
"""

FORK_LOOP = """
import os, signal, time
refused = None
pids = []
for _ in range(200):
    try:
        pid = os.fork()
    except OSError as error:
        refused = error.errno
        break
    if pid == 0:
        signal.pause()
    pids.append(pid)
for pid in pids:
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
print(len(pids), refused)
"""

BOMB = """
import os, signal
while True:
    try:
        if os.fork() == 0: signal.signal(signal.SIGINT, signal.SIG_IGN)
    except OSError: pass
"""

EIGHT_FULL = """
import os
try:
    with open("/workspace/full", "wb", 0) as file:
        while True:
            file.write(bytes(1 << 20))
except OSError as error:
    print(error.errno, os.path.getsize("/workspace/full") >> 20)
"""


@pytest.mark.parametrize("forked", [True, False], ids=["forked", "cold"])
async def test_limits_of_the_kernel_hold_as_written(enforcer: LimitEnforcer, forked: bool) -> None:
    async with open_world(enforcer, forked=forked, weights={"heavy": 400}) as world:
        await world.run("a", "x = 1")
        await world.run("h", "x = 1", env="heavy")
        group = world.confinement("a").group
        assert group is not None
        assert not group.lacking
        found = {
            name: files.read_file(group.directory, name).strip()
            for name in ("memory.max", "memory.oom.group", "pids.max", "cpu.weight")
        }
        assert found == {
            "memory.max": str(GROUP_MB << 20),
            "memory.oom.group": "0",
            "pids.max": str(PROCESSES - 1),
            "cpu.weight": "100",
        }
        heavy = world.confinement("h").group
        assert heavy is not None
        assert files.read_file(heavy.directory, "cpu.weight").strip() == "400"
        # Of which it does not see the name, nor any other's.
        seen = await world.run("a", "print(open('/proc/self/cgroup').read())")
        assert seen.outcome.stdout.split("\n")[-3] == "0::/"
        # All of a session is in its group, whatever it starts later.
        told = await world.run("a", "import subprocess as s; p = s.Popen(['sleep', '60'])")
        assert told.outcome.exit_code == 0
        pids = group.pids()
        assert world.session("a").pid in pids
        assert len(pids) == 3
        rows = {row.name: row for row in await world.run_service.describe()}
        assert rows["a"].limited_by == "cgroup"
        assert (rows["a"].memory_bytes or 0) >= (group.memory_bytes() or 0) > 0
    assert not Path(group.directory).exists()
    assert not Path(heavy.directory).exists()


async def test_an_interpreter_that_is_killed_is_told(
    enforcer: LimitEnforcer,
) -> None:
    async with open_world(enforcer) as world:
        await world.run("other", "y = 5")
        result = await world.run("a", SHARED_LOOP)
        event = the_only(result.limit_events, "memory")
        assert result.outcome.interpreter_restarted
        assert result.outcome.exit_code == 137
        assert event.enforced_by in ("cgroup", "watchdog")
        assert event.limit >> 20 == (GROUP_MB if event.enforced_by == "cgroup" else PROGRAM_MB)
        assert (event.peak_bytes or 0) >> 20 >= PROGRAM_MB - 1
        # The session lives, the next execution has nothing to do with it, nor has another session.
        after = await world.run("a", "print(1)")
        assert (after.outcome.stdout, after.limit_events) == ("1\n", ())
        failed = await world.run("a", "1 / 0")
        assert (failed.outcome.exit_code, failed.limit_events) == (1, ())
        other = await world.run("other", "print(y)")
        assert (other.outcome.stdout, other.limit_events) == ("5\n", ())


async def test_a_child_that_is_killed_is_told_too(
    enforcer: LimitEnforcer,
) -> None:
    async with open_world(enforcer) as world:
        await world.run("a", "kept = 7")
        code = GREEDY_CHILD.replace("LOOP", repr(SHARED_LOOP))
        result = await world.run("a", code)
        assert (result.outcome.exit_code, result.outcome.stdout) == (0, "-9\n")
        assert the_only(result.limit_events, "memory").times == 1
        assert (await world.run("a", "print(kept)")).outcome.stdout == "7\n"


async def test_too_many_processes_are_refused_counted_and_told(enforcer: LimitEnforcer) -> None:
    async with open_world(enforcer) as world:
        result = await world.run("a", FORK_LOOP)
        started, refused = result.outcome.stdout.split()
        assert int(refused) == 11  # EAGAIN
        assert int(started) == PROCESSES - 1 - 2
        event = the_only(result.limit_events, "processes")
        assert (event.enforced_by, event.limit, event.times) == ("cgroup", PROCESSES - 1, 1)
        assert (await world.run("a", "print(2)")).limit_events == ()


@pytest.mark.parametrize("forked", [True, False], ids=["forked", "cold"])
async def test_processes_of_a_fork_bomb_take_no_place_later(
    enforcer: LimitEnforcer, forked: bool
) -> None:
    async with open_world(enforcer, forked=forked) as world:
        for _ in range(3):
            result = await world.run("a", BOMB, timeout_s=2)
            assert result.outcome.timed_out
            assert (await world.run("a", "print(6 * 7)")).outcome.stdout == "42\n"


async def test_a_full_file_system_is_no_lack_of_memory(enforcer: LimitEnforcer) -> None:
    async with open_world(enforcer) as world:
        result = await world.run("a", EIGHT_FULL)
        assert result.outcome.stdout.split()[0] == "28"  # ENOSPC
        assert result.limit_events == ()
        assert (await world.run("a", "x = bytearray(40 << 20); print(len(x))")).limit_events == ()


async def test_weights_hold_between_busy_sessions(enforcer: LimitEnforcer) -> None:
    spin = """
import os, time
os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
end = time.monotonic() + SECONDS
while time.monotonic() < end:
    pass
print(time.process_time())
"""
    used: dict[str, float] = {}
    async with open_world(enforcer, weights={"heavy": 400}) as world:
        if world.enforcer.enforcement.cpu != "cgroup":
            skip("the cpu controller is not delegated")
        for name, env in (("light", "python"), ("heavy", "heavy")):
            await world.run(name, "x = 1", env=env)

        async def busy(name: str, env: str) -> None:
            await world.run(name, "import time; before = time.process_time()", env=env)
            result = await world.run(name, spin.replace("SECONDS", "4"), env=env)
            used[name] = float(result.outcome.stdout)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(busy, "light", "python")
            nursery.start_soon(busy, "heavy", "heavy")
    assert used["heavy"] > 1.8 * used["light"], used


async def test_a_long_execution_has_less_of_the_processor(enforcer: LimitEnforcer) -> None:
    async with open_world(enforcer) as world:
        if world.enforcer.enforcement.cpu != "cgroup":
            skip("the cpu controller is not delegated")
        await world.run("a", "x = 1")
        it = world.confinement("a")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(partial(world.run, "a", "while True: pass", timeout_s=WAIT_S))
            lowered = partial(
                becomes_true, lambda: it.facts()["cpu_weight"] == 100 // PART, "it is lowered"
            )
            await trio.to_thread.run_sync(lowered)  # the kernel tells nobody of it
            assert world.session("a").runs.interrupt()
        assert it.facts()["cpu_weight"] == 100


@pytest.mark.usefixtures("tree")
def test_a_supervisor_makes_sessions_groups_and_says_so(short_dir: Path) -> None:
    config = "[defaults]\ncpu_weight = 250\n"
    with (
        supervisor(short_dir, config=config, variables=bus()) as running,
        running.client() as client,
    ):
        limits = client.status().limits
        assert limits is not None
        assert (limits.memory, limits.processes, limits.why) == ("cgroup", "cgroup", "")
        assert client.run("print(1)", env="python", session="a").stdout == "1\n"
        (row,) = client.sessions()
        directory = group_of(row.pid)
        assert directory.endswith(f"/sessions/{row.id}")
        assert files.read_file(directory, "cpu.weight").strip() == "250"
        own = group_of(running.pid)
        assert own.endswith("/supervisor")
        assert own != group_of(os.getpid())  # whose sessions are none of its business
        assert row.limited_by == "cgroup"
    assert not Path(directory).exists()
    if Path("/run/systemd/system").exists():
        becomes_true(lambda: not Path(directory).parent.exists(), "its scope is gone")


UNIT = f"nsm-test-{os.getpid()}.service"


@pytest.mark.usefixtures("tree")
def test_a_service_starts_again_after_its_supervisor_was_killed(short_dir: Path) -> None:
    """Sessions have groups beside the unit's own: systemd cannot put a process into a group that
    hands controllers down (status 219/CGROUP), unless what is below has gone."""
    if shutil.which("systemd-run") is None:
        skip("systemd-run is missing")
    short_dir.chmod(0o700)
    variables = variables_for(short_dir) | bus()
    command = [
        *("systemd-run", manager_flag(), f"--unit={UNIT}", "--quiet"),
        *("-p", "Delegate=yes", "-p", "KillMode=mixed", "-p", "Restart=on-failure"),
        *("-p", "RestartSec=100ms", "-p", "OOMPolicy=continue", "-p", "Type=notify"),
        *(f"--setenv={name}={value}" for name, value in variables.items()),
        *(sys.executable, "-P", "-m", "nsmd"),
    ]
    subprocess.run(command, check=True, timeout=WAIT_S)
    try:
        for _ in range(2):
            with nsm.Client(socket_path=variables["NSM_SOCKET"], autostart=False) as client:
                limits = client.status().limits
                assert limits is not None
                assert limits.memory == "cgroup", limits
                client.run("x = 1", env="python", session="a")
                (row,) = client.sessions()
                assert "/nsm-sessions-" in group_of(row.pid)
                old = client.status().pid
            os.kill(old, 9)
            becomes_true(partial(is_back, old, variables["NSM_SOCKET"]), "it is started again")
    finally:
        subprocess.run(["systemctl", manager_flag(), "stop", UNIT], check=False, timeout=WAIT_S)


def main_pid() -> int:
    told = subprocess.run(
        ["systemctl", manager_flag(), "show", "-p", "MainPID", "--value", UNIT],
        check=True,
        capture_output=True,
        text=True,
        timeout=WAIT_S,
    )
    return int(told.stdout)


def is_back(old: int, socket_path: str) -> bool:
    """Return whether another supervisor than that one answers."""
    if main_pid() in (0, old):
        return False
    try:
        with nsm.Client(socket_path=socket_path, autostart=False) as client:
            client.status()
    except (nsm.NsmError, OSError):
        return False
    return True


def bus() -> dict[str, str]:
    """Variables that lead to the user's service manager."""
    names = ("XDG_RUNTIME_DIR", "DBUS_SESSION_BUS_ADDRESS")
    return {name: os.environ[name] for name in names if name in os.environ}
