"""Events that end a jail, and those that do not."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading

import pytest
import trio

from isolation.stage import open_stage
from isolation.weaken import Weakness
from isolation.weakjails import WeakLauncher
from nsmd.jail import BwrapLauncher, Jail
from nsmd.model.values import Environment
from processes import ENDING_S, Watched, ended, ending, parent_of, tree
from realjail import (
    STAY,
    environments,
    jail_spec,
    launched,
    needs_bwrap,
    new_launcher,
    open_session,
    read_all,
    talking_to,
)

pytestmark = [pytest.mark.jail, needs_bwrap]

STUBBORN = """
import os, signal, subprocess, sys
program = "import os, signal\\nfor n in (1, 2, 15): signal.signal(n, signal.SIG_IGN)\\n"
program += "os.setsid()\\nif os.fork(): os._exit(0)\\nos.write(1, b'.')\\nsignal.pause()"
read, write = os.pipe()
for _ in range(4):
    subprocess.Popen([sys.executable, "-c", program], stdout=write)
for _ in range(4):
    os.read(read, 1)
print("up")
"""
"""Starts daemons that ignore what can be ignored, and waits until they are up."""


@pytest.fixture(scope="module")
def python() -> Environment:
    return environments()["python"]


@pytest.mark.parametrize("how", ["kill", "end of file"])
async def test_the_end_of_a_jail_leaves_no_process(python: Environment, how: str) -> None:
    async with launched(new_launcher(), jail_spec(python)) as jail:
        async with talking_to(jail, "python") as session:
            assert (await session.run(STUBBORN)).stdout == "up\n"
        with Watched(tree(jail.pid)) as watched:
            assert watched.alive >= 6
            if how == "kill":
                jail.kill()
            else:
                jail.socket.close()
            with trio.fail_after(ENDING_S):
                await jail.wait()
            assert watched.alive == 0


async def test_a_supervisor_that_is_killed_leaves_no_process() -> None:
    program = f"""
import sys, trio
sys.path[:0] = {sys.path!r}
from realjail import *
async def main():
    async with open_session(environments()["python"]) as session:
        await session.run({STUBBORN!r})
        print(session.jail.pid, flush=True)
        await trio.sleep_forever()
trio.run(main)
"""
    command = [sys.executable, "-c", program]
    # The blocking call waits for the kernel to start it, no longer.
    with ending(subprocess.Popen(command, stdout=subprocess.PIPE)) as supervisor:  # noqa: ASYNC220
        assert supervisor.stdout is not None
        pid = int(supervisor.stdout.readline())
        with Watched(tree(pid)) as watched:
            assert watched.alive >= 6
            supervisor.kill()
            await watched.all_ended()


async def test_the_outer_bwrap_is_not_the_jail(python: Environment) -> None:
    """Finding 10: what is killed with it is nothing, and the jail can still be ended."""
    async with (
        launched(new_launcher(), jail_spec(python)) as jail,
        talking_to(jail, "python") as session,
    ):
        await session.run("x = 42")
        starter = os.pidfd_open(parent_of(jail.pid))
        try:
            signal.pidfd_send_signal(starter, signal.SIGKILL)
            await ended(starter)
        finally:
            os.close(starter)
        assert (await session.run("print(x)")).stdout == "42\n"
        with Watched(tree(jail.pid)) as watched:
            jail.kill()
            with trio.fail_after(ENDING_S):
                await jail.wait()
            assert watched.alive == 0


ORPHANS = """
import os, select
hold, release = os.pipe()
tell, told = os.pipe()
for _ in range(100):
    if os.fork() == 0:
        if os.fork() == 0:
            os.close(release)
            os.write(told, os.getpid().to_bytes(4, "big"))
            os.read(hold, 1)
        os._exit(0)
    os.wait()
orphans = [os.pidfd_open(int.from_bytes(os.read(tell, 4), "big")) for _ in range(100)]
os.close(release)
for orphan in orphans:
    select.select([orphan], [], [])
    os.close(orphan)
"""
"""Leaves a hundred children to PID 1 and returns when they have ended."""

ZOMBIES = """
import os
def state(pid):
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0]
    except OSError:
        return ""
print(sum(state(pid) == "Z" for pid in os.listdir("/proc") if pid.isdecimal()), flush=True)
"""


async def test_orphans_are_collected(python: Environment) -> None:
    """Finding 10: PID 1 without reaping fills the table with zombies."""
    async with open_session(python) as session:
        for _ in range(3):
            assert (await session.run(ORPHANS)).exit_code == 0
        # The agent collects between executions: one more gives it its turn.
        await session.run("pass")
        assert (await session.run(ZOMBIES)).stdout == "0\n"


async def test_orphans_are_seen_where_nobody_collects_them(python: Environment) -> None:
    negligent = BwrapLauncher(
        new_launcher().bwrap_path,
        new_launcher().user.uid,
        agent_source=(ORPHANS + ZOMBIES + STAY).encode(),
    )
    async with launched(negligent, jail_spec(python)) as jail:
        assert int(await read_all(jail)) == 100


def launch_in_a_thread(launcher: BwrapLauncher, environment: Environment) -> Jail:
    """Launch from a thread that ends at once, as trio's worker threads do after 10 s idle."""
    jails: list[Jail] = []

    def run() -> None:
        jails.append(trio.run(launcher.launch, jail_spec(environment)))

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    return jails[0]


async def test_a_jail_outlives_the_thread_that_started_it(python: Environment) -> None:
    """Finding 1."""
    jail = launch_in_a_thread(new_launcher(), python)
    try:
        async with talking_to(jail, "python") as session:
            assert (await session.run("print(1)")).stdout == "1\n"
    finally:
        jail.kill()
        await jail.wait()
        jail.release()


async def test_with_a_parent_death_signal_it_would_not(python: Environment) -> None:
    weakness = Weakness(arguments=lambda words, _: [*words[:-2], "--die-with-parent", *words[-2:]])
    with open_stage() as stage:
        jail = launch_in_a_thread(WeakLauncher(weakness, stage), python)
        with trio.fail_after(ENDING_S):
            await jail.wait()
        jail.release()


@pytest.mark.slow
@pytest.mark.parametrize("seconds", [15, 70])
async def test_a_session_of_each_preset_answers_after_it_was_left_alone(seconds: float) -> None:
    """Real time on purpose: the fault showed itself after 10 s, to no short test.

    `tests/e2e/test_idle_begin.py` and `test_idle_end.py` have it through the supervisor.
    """
    started: list[str] = []
    code = {"python": "print(x)", "bash": "echo $x", "node": "console.log(x)"}

    async def one(environment: Environment) -> None:
        async with open_session(environment) as session:
            await session.run("x=42")
            await trio.sleep(seconds)
            assert (await session.run(code[environment.interpreter])).stdout == "42\n"
            started.append(environment.name)

    async with trio.open_nursery() as nursery:
        for environment in environments().values():
            if environment.problem is None:
                nursery.start_soon(one, environment)
    assert "python" in started
