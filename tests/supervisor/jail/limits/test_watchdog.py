"""Limits without control groups: real jails, and the watchdog beside them."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Sequence

import pytest
import trio

from cgroup_world import MEMORY_MB, PROCESSES, open_world
from fakes import FakeJail, spec
from nsmd.jail.limits import Confinement, LimitEnforcer, confinement
from nsmd.jail.limits.confinement import PERIOD_S, Measured, Watchdog
from nsmd.jail.limits.group import AGENT_MB, GroupLimits
from nsmd.jail.limits.process_memory import HeldMemory, held_memory
from nsmd.model.values import EACH_PROCESS, LimitEvent, SessionLimits
from processes import ending
from realjail import needs_bwrap

LIMIT_MB = MEMORY_MB + AGENT_MB

SHARED = """
import mmap, time
held = mmap.mmap(-1, 160 << 20)
for at in range(0, len(held), 4096):
    held[at] = 1
time.sleep(30)
"""

# Three children together have more than their session may (96 MB), and each has less than one
# process may: 64 MB, of which the interpreter of a fork takes 14.
CHILDREN = """
import os, signal
def child():
    pid = os.fork()
    if pid == 0:
        held = bytearray(b"x") * (42 << 20)
        if HIDDEN:
            import ctypes
            ctypes.CDLL(None).prctl(4, 0)  # PR_SET_DUMPABLE
        signal.pause()
    return pid
pids = [child() for _ in range(3)]
first, status = os.wait()
print(os.waitstatus_to_exitcode(status))
for pid in set(pids) - {first}:
    os.kill(pid, signal.SIGTERM)
    os.waitpid(pid, 0)
"""

MANY_FORKS = """
import os, signal, time
block = bytearray(b"x") * (40 << 20)
pids = []
for _ in range(12):
    pid = os.fork()
    if pid == 0:
        signal.pause()
    pids.append(pid)
time.sleep(1.2)
for pid in pids:
    os.kill(pid, signal.SIGTERM)
print([os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in pids] == [-15] * 12)
"""

LEFT_BEHIND = """
import os, mmap, signal
left = os.fork()
if left == 0:
    os.setsid()
    held = mmap.mmap(-1, 160 << 20)
    for at in range(0, len(held), 4096):
        held[at] = 1
    signal.pause()
"""


HOW_IT_ENDED = """
import os
print(os.waitstatus_to_exitcode(os.waitpid(left, 0)[1]))
"""


def enforcer() -> LimitEnforcer:
    return LimitEnforcer(None, why="a test", limits=SessionLimits(processes=PROCESSES))


def the_only(events: tuple[LimitEvent, ...]) -> LimitEvent:
    assert len(events) == 1, events
    return events[0]


MEMORY_FILE = """
import os, time
held = os.memfd_create("held")
for _ in range(200):
    os.write(held, bytes(1 << 20))
print("written", flush=True)
time.sleep(SECONDS)
"""

SOCKETS = """
import socket, time
held = []
for _ in range(300):
    for one in (pair := socket.socketpair()):
        one.setblocking(False)
        try:
            while True:
                one.send(bytes(1 << 16))
        except BlockingIOError:
            pass
    held.append(pair)
print("written", flush=True)
time.sleep(SECONDS)
"""


@pytest.mark.slow
@pytest.mark.jail
@needs_bwrap
@pytest.mark.parametrize("code", [MEMORY_FILE, SOCKETS], ids=["memory file", "sockets"])
async def test_memory_that_is_held_by_descriptors_counts(
    code: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with open_world(enforcer()) as world:
        result = await world.run("a", code.replace("SECONDS", "30"))
        assert result.outcome.interpreter_restarted
        event = the_only(result.limit_events)
        assert (event.kind, event.enforced_by) == ("memory", "watchdog")
        assert (event.peak_bytes or 0) > LIMIT_MB << 20
        # Without the measure nothing sees it.
        monkeypatch.setattr(confinement, "held_memory", nothing_held)
        result = await world.run("b", code.replace("SECONDS", "1.5"))
        assert (result.outcome.stdout, result.limit_events) == ("written\n", ())


def nothing_held(_: object) -> HeldMemory:
    """Hide what is held."""
    return confinement.NOTHING_HELD


HOLDS = """
import os
number = os.memfd_create("held")
os.write(number, bytes(3 << 20))
reads, writes = os.pipe()
os.write(writes, b"x")
copies = os.dup(number), os.dup(reads)
child = os.fork()
if child:
    print(child, os.fstat(number).st_ino, flush=True)
input()
"""


def test_memory_held_by_descriptors_is_counted_once() -> None:
    with ending(
        subprocess.Popen(
            [sys.executable, "-c", HOLDS],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
    ) as holder:
        assert holder.stdout is not None
        child, inode = map(int, holder.stdout.readline().split())
        found = held_memory([holder.pid, child, 0, 2**22 + 1])
        holder.communicate(b"\n\n")
    assert (found.memory_files, found.pipes, found.sockets) == (3 << 20, 64 << 10, 0)
    half = (3 << 20 | 64 << 10) / 2
    assert found.shares == {holder.pid: half, child: half}
    assert found.inodes == {inode}


@pytest.mark.jail
@needs_bwrap
async def test_too_much_memory_is_ended_and_told() -> None:
    """One jail for all of it: each is half a second of waiting."""
    async with open_world(enforcer()) as world:
        await world.run("other", "y = 5")
        result = await world.run("a", SHARED)
        assert result.outcome.interpreter_restarted
        event = the_only(result.limit_events)
        assert (event.kind, event.enforced_by, event.times) == ("memory", "watchdog", 1)
        assert event.limit == LIMIT_MB << 20
        assert (event.peak_bytes or 0) > event.limit
        # Whoever makes himself unreadable is counted all the same.
        for hidden in ("0", "1"):
            result = await world.run("a", CHILDREN.replace("HIDDEN", hidden))
            assert (result.outcome.stdout, result.outcome.exit_code) == ("-9\n", 0)
            assert 1 <= the_only(result.limit_events).times <= 3
        # Forks that share what they have do not have it each.
        result = await world.run("a", MANY_FORKS)
        assert (result.outcome.stdout, result.limit_events) == ("True\n", ())
        # A limit of one process is not one of the session's.
        result = await world.run("a", "x = bytearray(200 << 20)")
        assert "MemoryError" in result.outcome.stderr
        assert result.limit_events == ()
        assert (await world.run("other", "print(y)")).outcome.stdout == "5\n"
        rows = {row.name: row.limited_by for row in await world.run_service.describe()}
        assert rows == {"a": "watchdog", "other": "watchdog"}


@pytest.mark.jail
@needs_bwrap
async def test_a_process_left_behind_with_too_much_memory_is_ended() -> None:
    async with open_world(enforcer()) as world:
        await world.run("a", LEFT_BEHIND)
        result = await world.run("a", HOW_IT_ENDED)
        assert result.outcome.stdout == "-9\n"


class Counting(Confinement):
    """Says what it is told to instead of looking."""

    looks = 0
    processes = 2

    def measure(self) -> Measured:
        self.looks += 1
        return Measured(self.processes, 0, [])


async def here(
    look: Callable[[Sequence[Confinement]], list[Measured]], at: Sequence[Confinement]
) -> list[Measured]:
    """Stand-in for a thread, during which virtual time would go on."""
    await trio.lowlevel.checkpoint()
    return look(at)


def counting(watchdog: Watchdog, jail: FakeJail) -> Counting:
    limits = GroupLimits(memory_bytes=1, program_bytes=1, processes=1, cpu_weight=1)
    return Counting(jail, limits, EACH_PROCESS, watch=watchdog.watch)


async def test_the_watchdog_looks_only_where_something_runs(autojump_clock: trio.abc.Clock) -> None:
    watchdog, jail = Watchdog(here), FakeJail(1, spec())
    idle, busy = counting(watchdog, jail), counting(watchdog, jail)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(watchdog.run)
        await trio.sleep(100 * PERIOD_S)
        busy.begun()
        await trio.sleep(3.5 * PERIOD_S)
        assert (idle.looks, busy.looks) == (0, 3)
        # What it has left behind is looked at until it is gone.
        busy.processes = 3
        busy.ended(None)
        await trio.sleep(2 * PERIOD_S)
        assert busy.looks == 5
        busy.processes = 2
        await trio.sleep(100 * PERIOD_S)
        assert busy.looks == 6
        nursery.cancel_scope.cancel()
    jail.release()
    jail.agent_end.close()


def test_a_process_is_told_on_its_standard_error_why_it_ends() -> None:
    sleeper = subprocess.Popen(["sleep", "60"], stderr=subprocess.PIPE)
    with ending(sleeper):
        confinement.tell_on_stderr(sleeper.pid, "more than its memory\n")
        assert sleeper.stderr is not None
        assert sleeper.stderr.readline() == b"more than its memory\n"
        sleeper.kill()
