"""The supervisor, or all of nsm, stops for minutes: SIGSTOP, a frozen container, a debugger.

Time is virtual: nothing runs while it jumps, as nothing does in a process that is stopped. At the
end real processes are, all together.
"""

from __future__ import annotations

import os
import signal
import sys
import tempfile
import threading
import time
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import trio
import trio.testing

from control_bench import bench
from e2e_support import supervisor
from nsmd.host.event_loop import LATE_S, WATCHED_S, AwakeClock
from sandbox.framing import encode_frame

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Mapping

    from control_bench import Bench, Peer
    from fakes import FakeAgent, FakeJail

MINUTES_S = 600.0

PATIENCE_S = 100.0
"""More than the time limit of code, and all that its agent is given beyond it."""


class Time:
    """Clock of the test's event loop."""

    def __init__(self) -> None:
        self.now_s = 1000.0

    def stop(self, seconds: float) -> None:
        """Everything stands still for so long."""
        self.now_s += seconds

    async def go(self, seconds: float) -> None:
        """Let this time pass while the event loop runs."""
        end_s = self.now_s + seconds
        while self.now_s < end_s:
            self.now_s = min(end_s, self.now_s + 0.9 * LATE_S)
            await trio.testing.wait_all_tasks_blocked()


@pytest.fixture
def passing() -> Time:
    return Time()


@pytest.fixture
def clock(passing: Time) -> trio.abc.Clock:
    return AwakeClock(lambda: passing.now_s)


class Hand:
    """An agent that does what the test says."""

    def __init__(self) -> None:
        self.frames: list[Mapping[str, Any]] = []
        self.jail: FakeJail | None = None
        self._sent = 0

    async def __call__(self, agent: FakeAgent, jail: FakeJail) -> None:
        self.jail = jail
        await agent.be_ready()
        while True:
            self.frames.append(await agent.receive())

    def say(self, **frame: Any) -> None:
        """Send a frame while everybody else is stopped."""
        assert self.jail is not None
        self._sent += 1
        self.jail.agent_end.send(encode_frame({**frame, "seq": self._sent}))

    def result(self, stdout: str, **fields: Any) -> None:
        answer = {"type": "result", "id": self.frames[0]["id"], "stdout": stdout, "stderr": ""}
        self.say(**answer, exit_code=0, **fields)


@asynccontextmanager
async def begun() -> AsyncGenerator[tuple[Bench, Hand, Peer, int]]:
    """Code that runs in the session `a`; the last of these is the call's id."""
    hand = Hand()
    async with bench(hand, idle_timeout_s=300) as it:
        peer = await it.connect()
        running = await peer.start("run", env="python", code="x", session="a")
        await trio.testing.wait_all_tasks_blocked()
        yield it, hand, peer, running


async def test_an_answer_that_came_meanwhile_counts(passing: Time, clock: trio.abc.Clock) -> None:
    async with begun() as (it, hand, peer, running):
        hand.result("done")
        passing.stop(MINUTES_S)  # far beyond the time limit
        assert (await peer.answer(running))["stdout"] == "done"
        assert it.run_service.find("a").state.value == "idle"


@pytest.mark.parametrize("began_s", [0.0, 5.0, 29.0, 41.0])
@pytest.mark.parametrize("stopped_s", [10.0, 35.0, 45.0, MINUTES_S])
async def test_time_in_which_all_stood_still_is_nobodys(
    passing: Time, clock: trio.abc.Clock, began_s: float, stopped_s: float
) -> None:
    """However long that is, and whenever it begins: agents have as much as without it."""
    async with begun() as (it, hand, peer, running):
        await passing.go(began_s)
        passing.stop(stopped_s)
        await passing.go(max(0.0, 41.0 - began_s))
        hand.result("so far", timed_out=True)
        assert (await peer.answer(running))["timed_out"]
        assert it.run_service.find("a").state.value == "idle"


async def test_any_number_of_stops_is_harmless(passing: Time, clock: trio.abc.Clock) -> None:
    async with begun() as (_, hand, peer, running):
        for _ in range(40):
            await passing.go(LATE_S)
            passing.stop(45.0)
        hand.result("done")
        assert (await peer.answer(running))["stdout"] == "done"


async def test_an_agent_that_stays_silent_is_given_up_after_that(
    passing: Time, clock: trio.abc.Clock
) -> None:
    async with begun() as (it, *_):
        session = it.run_service.find("a")
        passing.stop(MINUTES_S)
        await passing.go(1)
        assert session.live
        await passing.go(PATIENCE_S)
        assert session.end_reason == "its agent did not answer in time"


async def test_idle_sessions_have_time_after_it(passing: Time, clock: trio.abc.Clock) -> None:
    """The end of their idle time is put off; whoever comes first keeps them."""
    async with begun() as (_, hand, peer, running):
        hand.result("1")
        await peer.answer(running)
        passing.stop(MINUTES_S)
        await passing.go(WATCHED_S - 10)
        again = await peer.start("run", env="python", code="y", session="a")
        await trio.testing.wait_all_tasks_blocked()
        hand.frames.pop(0)
        hand.result("2")
        answer = await peer.answer(again)
        assert (answer["stdout"], answer["session"]["created"]) == ("2", False)


async def test_a_busy_event_loop_is_not_taken_for_a_stopped_one(
    passing: Time, clock: trio.abc.Clock
) -> None:
    began_s = trio.current_time()
    with trio.move_on_after(50) as scope:
        for _ in range(200):
            await passing.go(0.5)
    assert scope.cancelled_caught
    assert trio.current_time() - began_s == pytest.approx(50, abs=1)


SHORT_MARGIN = """
import sys
import nsmd.sessions.agent_session, nsmd.sessions.execution_queue
from nsmd.app.main import main
nsmd.sessions.execution_queue.ANSWER_MARGIN_S = 0.5
nsmd.sessions.agent_session.ANSWER_MARGIN_S = nsmd.sessions.agent_session.RESUME_TIMEOUT_S = 0.5
sys.argv = ["nsm-supervisor", *sys.argv[5:]]
sys.exit(main())
"""
"""A supervisor that soon gives agents up; behind it comes the command that it stands for."""

LIMIT_S = 4.0
STOPPED_S = LIMIT_S + 3.5
"""Longer than the time limit, the grace and that margin."""


@pytest.mark.jail
@pytest.mark.slow
def test_real_processes_that_are_all_stopped_go_on() -> None:
    """A frozen container, simulated: the session is not lost, and its code has not used up its
    time.
    """
    printed = threading.Event()
    code = (
        "import time\nprint('up', flush=True)\nfor _ in range(10): time.sleep(0.1)\nprint('done')"
    )
    within = [sys.executable, "-P", "-c", SHORT_MARGIN]
    with supervisor(within=within) as it, it.client() as client:
        client.run("x = 1", env="python", session="a")

        def stop() -> None:
            assert printed.wait(120)
            everybody = [it.pid, *it.descendants()]
            for pid in everybody:
                os.kill(pid, signal.SIGSTOP)
            time.sleep(STOPPED_S)  # it is a time in which nobody runs that is wanted
            for pid in everybody:  # the supervisor first: nobody has said anything yet
                os.kill(pid, signal.SIGCONT)

        job = client.exec("a", ["sh", "-c", "sleep 1; echo done; exit 3"], timeout_s=LIMIT_S)
        thread = threading.Thread(target=stop)
        thread.start()
        result = client.run(
            code,
            env="python",
            session="a",
            timeout_s=LIMIT_S,
            on_output=lambda _stream, _text: printed.set(),
        )
        thread.join()
        assert (result.stdout, result.timed_out) == ("up\ndone\n", False)
        ended = job.collect()
        assert (ended.stdout, ended.info.timed_out, ended.exit_code) == (b"done\n", False, 3)
        assert client.run("print(x)", env="python", session="a").stdout == "1\n"
        client.kill_all()


@pytest.mark.jail
@pytest.mark.slow
def test_an_agent_that_is_stopped_while_its_supervisor_is_replaced_goes_on() -> None:
    within = [sys.executable, "-P", "-c", SHORT_MARGIN]
    with tempfile.TemporaryDirectory(prefix="nsm-") as path:
        with supervisor(Path(path), keep=True) as it:
            with it.client() as client:
                client.run("x = 1", env="python", session="a")
                (agent,) = [row.pid for row in client.sessions()]
            os.kill(agent, signal.SIGSTOP)
            it.kill()
        with supervisor(Path(path), within=within) as it, it.client() as client:
            going_on = threading.Timer(STOPPED_S, os.kill, (agent, signal.SIGCONT))
            going_on.start()
            assert client.run("print(x)", env="python", session="a").stdout == "1\n"
            going_on.join()
            client.kill_all()
