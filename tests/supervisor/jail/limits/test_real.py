"""Limits that the kernel keeps: control groups version 2, delegated by `systemd --user`.

Run as an ordinary user with a manager of its own, or as root below systemd; `make test-vm` does.
Each test that cannot says so, unless NSM_TEST_GROUPS=1 says that it must be able to. What a whole
supervisor does with them is in tests/vm.
"""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path
from typing import NoReturn

import pytest
import trio

from agent_process import becomes_true
from cgroup_world import ALL_FILES_MB, MEMORY_MB, PROCESSES, open_world
from nsmd.jail.limits import LimitEnforcer, find_enforcer
from nsmd.jail.limits import tree as files
from nsmd.jail.limits.group import AGENT_MB, PART
from nsmd.jail.limits.tree import GroupTree
from nsmd.model.values import LimitEvent, SessionLimits
from realjail import needs_bwrap

pytestmark = [pytest.mark.jail, needs_bwrap]

MUST = os.environ.get("NSM_TEST_GROUPS") == "1"

GROUP_MB = MEMORY_MB + AGENT_MB + ALL_FILES_MB
"""Limit of a session in `world`."""

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


async def test_a_child_that_is_killed_is_told_too(enforcer: LimitEnforcer) -> None:
    async with open_world(enforcer) as world:
        await world.run("a", "kept = 7")
        code = GREEDY_CHILD.replace("LOOP", repr(SHARED_LOOP))
        result = await world.run("a", code)
        assert (result.outcome.exit_code, result.outcome.stdout) == (0, "-9\n")
        assert the_only(result.limit_events, "memory").times == 1
        assert (await world.run("a", "print(kept)")).outcome.stdout == "7\n"


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
