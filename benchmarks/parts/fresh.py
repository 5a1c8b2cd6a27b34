"""One statement in a jail of its own, against cold starts of jails without nsm."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from bench import Bench, run_once, settle
from measure import (
    Comparison,
    Distribution,
    Findings,
    LeftOut,
    Target,
    Timer,
    alternate,
    alternate_all,
    timed,
    timer,
)
from peers import srt
from peers.cold import Cold
from peers.floors import FloorMissingError, chain, fork_floor

NAME = "one-shot run (fresh jail), warm pool"
COLD_NAME = "fastest cold bwrap + python"
CALLS_PER_ROUND = 3
CALLS_BACK_TO_BACK = 20
PROCESSES = 4  # client, supervisor, agent, interpreter


def measure(bench: Bench) -> Findings:
    """Measure one-shots with gaps in which the pool refills, without gaps, and against srt."""
    yield from with_gaps(bench)
    yield from back_to_back(bench)
    yield from against_srt(bench)


def with_gaps(bench: Bench) -> Findings:
    """One call at a time, the pool full before each."""
    cold = Cold(bench.python)
    with bench.client() as client, chain(bench.python, processes=PROCESSES) as hops:
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
    yield theirs.distribution(COLD_NAME, reference=True)


def back_to_back(bench: Bench) -> Findings:
    """Call after call: how fast it is when the pool cannot keep up."""
    cold = Cold(bench.python)
    samples: list[float] = []

    def theirs() -> float:
        taken = [timed(cold.once) for _ in range(CALLS_BACK_TO_BACK)]
        cold.reap()
        return sum(taken) / CALLS_BACK_TO_BACK

    with bench.client() as client, fork_floor(bench.python) as floor:

        def ours() -> float:
            taken = [timed(lambda: run_once(client)) for _ in range(CALLS_BACK_TO_BACK)]
            samples.extend(taken)
            settle(client)
            return sum(taken) / CALLS_BACK_TO_BACK

        sides: list[Callable[[], float]] = [ours, theirs]
        for kind in ("session", "fork"):
            try:
                floor.time(kind)
            except FloorMissingError as error:
                yield LeftOut(what=f"floor of {NAME}", why=str(error))
                break
            sides.append(Timer(once=partial(floor.time, kind), calls=CALLS_BACK_TO_BACK))
        taken = alternate_all(sides, rounds=bench.some_rounds(0.5))
    yield Comparison(
        name="one-shot runs back to back, mean",
        peer=COLD_NAME,
        pairs=tuple(zip(taken[0], taken[1], strict=True)),
        unit="ms",
        more=True,
    )
    names = ("a fork with a session's namespaces and mounts alone", "a fork alone")
    for name, values in zip(names, taken[2:], strict=False):
        yield Comparison(
            name=name,
            peer=COLD_NAME,
            pairs=tuple(zip(values, taken[1], strict=True)),
            unit="ms",
            more=True,
            floor=True,
        )
    yield Distribution(name="one-shot run, back to back", samples=tuple(samples))


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
