"""Programs in fresh interpreters against scripted agents and runners. Time is virtual."""

from __future__ import annotations

import os
import socket
import threading
import time
from contextlib import suppress
from typing import TYPE_CHECKING

import trio

from fakes import FakeAgent
from nsm.wire.transcripts import FreshRun
from nsmd.agent_link.link import AgentLink
from nsmd.model.values import ClientIdentity
from nsmd.sessions.fresh import KILLED, MARGIN_S, START_S, CheckedProgram, ClientPrograms
from sessionbench import Bench, bench
from virtual_time import virtual_time

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping
    from typing import Any

    from fakes import Behaviour, FakeJail

pytestmark = virtual_time

LONG = CheckedProgram("wait", 3600.0, ())


def with_runners(
    serve: Callable[[FakeAgent], Awaitable[None]], *, start_s: float = 0.0
) -> Behaviour:
    """An agent that starts runners one after another, each of which a function serves."""

    async def behave(agent: FakeAgent, _: FakeJail) -> None:
        await agent.be_ready(["sequence", "runners"])
        async with trio.open_nursery() as nursery:
            with suppress(EOFError):
                while True:
                    frame = await agent.receive()
                    if frame["type"] == "runner":
                        await start(agent, frame, nursery)
            nursery.cancel_scope.cancel()

    async def start(agent: FakeAgent, frame: Mapping[str, Any], nursery: trio.Nursery) -> None:
        await trio.sleep(start_s)
        ours, theirs = socket.socketpair()
        theirs.setblocking(False)
        nursery.start_soon(run, FakeAgent(theirs))
        with ours:
            await agent.send({"type": "runner", "id": frame["id"]}, ours.fileno())

    async def run(runner: FakeAgent) -> None:
        with suppress(EOFError, trio.BrokenResourceError):
            await serve(runner)
        await runner.aclose()

    return behave


async def say_nothing(runner: FakeAgent) -> None:
    """Be as a runner that code has stopped."""
    while True:
        await runner.receive()


async def run_for_ever(runner: FakeAgent) -> None:
    """Begin what comes, and end nothing."""
    await runner.send({"type": "ready", "protocol": 1, "capabilities": []})
    await say_nothing(runner)


async def end_at_once(runner: FakeAgent) -> None:
    """Be as a runner that has no memory to start."""
    await trio.lowlevel.checkpoint()


def programs_of(it: Bench, *programs: CheckedProgram) -> ClientPrograms:
    run = ClientPrograms(it.session, ClientIdentity(name="test", scope="s"), at_once=2)
    run.add(programs)
    return run


async def test_programs_fail_when_no_runner_starts() -> None:
    for serve in (say_nothing, end_at_once):
        async with bench(with_runners(serve)) as it:
            run = programs_of(it, LONG, LONG, LONG)
            with trio.fail_after(START_S + 1):
                await run.ended()
            assert all("runner" in result.error for result in run.take())


async def test_a_channel_of_another_kind_is_refused() -> None:
    ours, theirs = socket.socketpair(type=socket.SOCK_SEQPACKET)

    async def behave(agent: FakeAgent, _: FakeJail) -> None:
        await agent.be_ready(["sequence", "runners"])
        with suppress(EOFError):
            while True:
                frame = await agent.receive()
                if frame["type"] == "runner":
                    await agent.send({"type": "runner", "id": frame["id"]}, ours.fileno())

    with ours, theirs:
        async with bench(behave) as it:
            run = programs_of(it, LONG)
            with trio.fail_after(START_S + 1):
                await run.ended()
            assert "no such socket" in run.take()[0].error


async def test_what_is_interrupted_ends_also_if_its_runner_is_stopped() -> None:
    began = trio.Event()

    async def begin(runner: FakeAgent) -> None:
        await runner.send({"type": "ready", "protocol": 1, "capabilities": []})
        await runner.receive()
        began.set()
        await say_nothing(runner)

    async with bench(with_runners(begin)) as it:
        run = programs_of(it, LONG)
        await began.wait()
        run.interrupt()
        run.interrupt()
        with trio.fail_after(it.session.limits.grace_s + MARGIN_S + 1):
            await run.wait()
        ((_, outcome, error, _),) = run.take()
        assert (outcome.exit_code, "in time" in error) == (KILLED, True)


async def test_no_runner_is_there_during_a_fork_not_even_one_that_was_starting() -> None:
    live: list[FakeAgent] = []

    async def run_quickly(runner: FakeAgent) -> None:
        live.append(runner)
        try:
            await runner.send({"type": "ready", "protocol": 1, "capabilities": []})
            while True:
                await runner.answer(await runner.receive())
        finally:
            live.remove(runner)

    async with bench(with_runners(run_quickly, start_s=1.0)) as it:
        first = programs_of(it, LONG, LONG)
        await first.ended()
        assert len(live) == 1, "the other one is starting"
        async with it.session.runners.away():
            later = programs_of(it, LONG)
            await trio.sleep(10)
            assert (live, later.running, later.pending) == ([], 0, 1)
        await later.ended()


async def test_all_who_wait_are_told() -> None:
    async with bench(with_runners(run_for_ever)) as it:
        run = programs_of(it, LONG, LONG)
        with trio.fail_after(100):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(run.wait)
                await trio.sleep(1)
                run.end()
                nursery.start_soon(run.ended)


async def test_programs_that_never_began_are_noted_once() -> None:
    async with bench(with_runners(run_for_ever)) as it:
        programs_of(it, LONG, LONG).end()
        entries = it.session.transcript.read()
        assert [entry.not_run for entry in entries if isinstance(entry, FreshRun)] == [2]


async def test_a_channel_that_its_sender_makes_block_holds_nobody_up() -> None:
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    sender_has = os.dup(ours.fileno())
    os.set_blocking(sender_has, True)
    os.close(sender_has)
    threading.Timer(2.0, theirs.close).start()  # so that one that waits comes back
    async with trio.open_nursery() as nursery:
        link = AgentLink(ours, nursery)
        started = time.monotonic()
        link.read()
        link.post({"type": "execute", "id": "1", "code": "x" * 8 * 2**20})
        assert not link.has_ended
        assert time.monotonic() - started < 1.5
        link.close()
        nursery.cancel_scope.cancel()
    ours.close()
