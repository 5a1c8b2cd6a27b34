"""One statement in a jail of its own, against cold starts of jails without nsm.

Before each call of the first row the pool has refilled. "Create and first command" is what
ComputeSDK's benchmarks measure for providers of sandboxes: 100 one after another, 100 launched 0.2
s apart, 100 at once; each is destroyed after its command, which is not timed. Here a sandbox is a
named session. They leave out the fastest and slowest 5 % before percentiles; we leave out nothing.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from itertools import chain

import trio

import nsm
from bench import Bench, run_once, settle
from machine import MANY_CORES, cores
from measure import (
    Comparison,
    Distribution,
    Findings,
    LeftOut,
    Target,
    Timer,
    against_budget,
    alternate,
    alternate_all,
    percentile,
    timed,
    timer,
)
from peers import floors, srt
from peers.cold import Cold

NAME = "one-shot run (fresh jail), warm pool"
COLD_NAME = "fastest cold bwrap + python"
CALLS_PER_ROUND = 3
PROCESSES = 4  # client, supervisor, agent, interpreter

SANDBOXES = 100
WAYS: Mapping[str, float | None] = {
    "one after another": None,
    "0.2 s apart": 0.2,
    "all at once": 0.0,
}
"""ComputeSDK's sequential, staggered and burst, with the seconds between two launches
(github.com/computesdk/benchmarks, METHODOLOGY.md).
"""
BURST_BUDGET_MS = 100
"""The budget of p95 on machines with `MANY_CORES`."""


def measure(bench: Bench) -> Findings:
    """Measure one-shots with a full pool, in ComputeSDK's ways, and against srt."""
    yield from with_gaps(bench)
    yield from as_computesdk(bench)
    yield from against_srt(bench)


def with_gaps(bench: Bench) -> Findings:
    """One call at a time, the pool full before each."""
    cold = Cold(bench.python)
    with bench.client() as client, floors.chain(bench.python, processes=PROCESSES) as hops:
        run_once(client)  # its kind is in use from now on

        def from_pool() -> float:
            settle(client)
            return timed(lambda: run_once(client))

        def cold_start() -> float:
            settle(client)
            took = timed(cold.once)
            cold.reap()
            return took

        ours = Timer(once=from_pool, calls=CALLS_PER_ROUND)
        theirs = Timer(once=cold_start, calls=CALLS_PER_ROUND)
        floor = timer(hops, calls=CALLS_PER_ROUND)
        taken = alternate_all([ours, theirs, floor], rounds=bench.rounds)
    yield Comparison(
        name=NAME,
        peer=COLD_NAME,
        pairs=tuple(zip(taken[0], taken[1], strict=True)),
        unit="ms",
        target=Target(bound="≥", value=10),
        more=True,
    )
    yield Comparison(
        name="one message through four Python processes and back",
        peer=COLD_NAME,
        pairs=tuple(zip(taken[2], taken[1], strict=True)),
        unit="ms",
        more=True,
        floor=True,
    )
    yield ours.distribution("one-shot run, warm pool")
    yield theirs.distribution(COLD_NAME)


def as_computesdk(bench: Bench) -> Findings:
    """Creation and first command of a hundred sandboxes, in the three ways of ComputeSDK."""
    python = bench.python
    with bench.client() as client:
        for way, gap_s in WAYS.items():

            def ours(gap_s: float | None = gap_s) -> tuple[float, ...]:
                settle(client)
                return trio.run(sessions, bench.socket_path, gap_s)

            def theirs(gap_s: float | None = gap_s) -> tuple[float, ...]:
                settle(client)
                return trio.run(launch, gap_s, partial(cold_jail, python))

            # With gaps a round takes long, and needs no warm-up: the first calls disturb no others.
            taken = (
                alternate_all([ours, theirs], rounds=1, warm_up=False)
                if gap_s
                else alternate_all([ours, theirs], rounds=bench.some_rounds(0.1))
            )
            name = f"create and first command, {SANDBOXES} {way}"
            for percent in (50, 95):
                yield Comparison(
                    name=f"{name}, p{percent}",
                    peer=COLD_NAME,
                    pairs=tuple(
                        (percentile(mine, percent), percentile(other, percent))
                        for mine, other in zip(*taken, strict=True)
                    ),
                    unit="ms",
                    more=True,
                )
            if gap_s == 0 and cores() >= MANY_CORES:
                values = [percentile(mine, 95) for mine in taken[0]]
                yield against_budget(f"{name}, p95", values, BURST_BUDGET_MS, "ms")
            for what, runs in zip((name, f"{COLD_NAME}, {SANDBOXES} {way}"), taken, strict=True):
                samples = tuple(chain.from_iterable(runs))
                yield Distribution(name=what, samples=samples, plotted=False)


async def launch(gap_s: float | None, use: Callable[[int], Awaitable[float]]) -> tuple[float, ...]:
    """Use a hundred sandboxes.

    Args:
        gap_s: seconds between two launches; None to wait for the end of each.
        use: uses one sandbox; returns the milliseconds from its creation to the end of its first
            command.
    """
    taken: list[float] = []

    async def one(number: int) -> None:
        taken.append(await use(number))

    async with trio.open_nursery() as nursery:
        for number in range(SANDBOXES):
            if gap_s is None:
                await one(number)
                continue
            nursery.start_soon(one, number)
            if gap_s:
                await trio.sleep(gap_s)
    return tuple(taken)


async def sessions(socket_path: str, gap_s: float | None) -> tuple[float, ...]:
    """Named sessions, each of which is ended after its first command."""

    async def use(number: int) -> float:
        name = f"sandbox-{number}"
        began_s = time.perf_counter()
        result = await client.run("print(1 + 1)", env="python", session=name)
        took_ms = (time.perf_counter() - began_s) * 1000
        assert result.exit_code == 0, result
        await client.kill([name])
        return took_ms

    async with nsm.AsyncClient(socket_path=socket_path, autostart=False) as client:
        return await launch(gap_s, use)


async def cold_jail(python: str, _number: int) -> float:
    """A cold start in a thread of its own; the jail ends by itself."""
    cold = Cold(python)
    began_s = time.perf_counter()

    def use() -> float:
        cold.once()
        took_ms = (time.perf_counter() - began_s) * 1000
        cold.reap()
        return took_ms

    return await trio.to_thread.run_sync(use, limiter=trio.CapacityLimiter(1))


def against_srt(bench: Bench) -> Findings:
    """Measure one command in another sandbox for agents."""
    try:
        with bench.client() as client, srt.srt(bench.python) as command:

            def ours() -> float:
                settle(client)
                return timed(lambda: run_once(client))

            pairs = alternate(ours, lambda: timed(command), rounds=bench.some_rounds(0.25))
    except srt.SrtMissingError as error:
        yield LeftOut(what=srt.NAME, why=str(error))
        return
    yield Comparison(name=NAME, peer=srt.NAME, pairs=pairs, unit="ms", more=True)
