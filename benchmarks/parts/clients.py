"""Throughput of 1 client, of some, of as many as there are cores, and of twice as many.

Each client is a process of its own that makes one call after the other.

They run for a second without a pause, in turn with as many others that start cold jails. Spares
that the pool had at the start last a few hundredths of that time. For cores, supervisor, jails and
clients may use only so many (sched_setaffinity(2)), from the supervisor's start on.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import chain
from statistics import median

import nsm
from bench import Bench, connect, settle, supervisor
from load import Load, LoadRun, clients, load
from machine import MANY_CORES, cores, on_cores
from measure import (
    Comparison,
    Curve,
    Distribution,
    Findings,
    LeftOut,
    Target,
    against_budget,
    alternate_all,
    percentile,
)
from parts.fresh import COLD_NAME
from peers.floors import FloorMissingError, ForkFloor, fork_floor
from peers.kernels import NAME as KERNEL_NAME
from peers.kernels import KernelsMissingError

RUN_S = 1.0
"""Duration of one measurement; a pool is empty within a few hundredths of it."""

MOST_KERNELS = 16
LIVE_SESSIONS = 100

FRESH_BUDGET, LIVE_BUDGET = 1_400, 12_000
"""Calls a second on machines with `MANY_CORES`."""

LoadRuns = Sequence[LoadRun]

Rates = Mapping[int, tuple[float, float]]
"""Calls a second, ours and the peer's, by how many clients or cores."""


def measure(bench: Bench) -> Findings:
    """Fresh sessions, then calls in live ones."""
    yield from fresh_sessions(bench)
    yield from live_sessions(bench)
    yield from many_live_sessions(bench)


def client_numbers(cores: int) -> list[int]:
    """Numbers of clients for a machine."""
    return sorted({1, min(4, cores), cores, 2 * cores})


def core_numbers(cores: int) -> list[int]:
    """Numbers of cores to try: powers of two, and all."""
    return sorted({*(1 << power for power in range(cores.bit_length())), cores})


def fresh_sessions(bench: Bench) -> Findings:
    """One-shot runs against cold starts, as many clients at once."""
    rates: dict[int, tuple[float, float]] = {}
    with bench.client() as client, fork_floor(bench.python) as floor:
        for number in client_numbers(cores()):
            floors = list[Callable[[], LoadRun]]()
            if number == cores():
                try:
                    floors = floor_sides(floor, window=number)
                except FloorMissingError as error:
                    yield LeftOut(what="floor of fresh sessions a second", why=str(error))
            with (
                load("fresh", [bench.socket_path] * number) as ours,
                load("cold", [bench.python] * number) as theirs,
            ):
                taken = in_turn(bench, client, ours, theirs, *floors)
            mine, others = taken[:2]
            rates[number] = median_rates(mine, others)
            yield from fresh_rates(number, mine, others, taken[2:])
            yield from fresh_latencies(number, mine, others)
    yield from curves("fresh", "one-shot runs", COLD_NAME, rates)
    yield from fresh_sessions_by_cores(bench, rates[2 * cores()])


def fresh_sessions_by_cores(bench: Bench, on_all: tuple[float, float]) -> Findings:
    """The same with two clients for each core, on some of the cores.

    Args:
        on_all: rates on all cores, with as many clients for each.
    """
    rates: dict[int, tuple[float, float]] = {}
    python = bench.python
    for number in core_numbers(cores())[:-1]:
        with (
            on_cores(number),
            supervisor() as variables,
            connect(variables) as client,
            load("fresh", [variables["NSM_SOCKET"]] * 2 * number) as ours,
            load("cold", [python] * 2 * number) as theirs,
        ):
            taken = in_turn(bench, client, ours, theirs)
        rates[number] = median_rates(*taken)
    rates[cores()] = on_all
    yield from curves("cores", "one-shot runs", COLD_NAME, rates)


def live_sessions(bench: Bench) -> Findings:
    """Calls in live sessions against calls in live kernels, as many at once."""
    rates: dict[int, tuple[float, float]] = {}
    numbers = [number for number in client_numbers(cores()) if number <= MOST_KERNELS]
    try:
        kernels = bench.kernels.at_least(numbers[-1])
    except KernelsMissingError as error:
        yield LeftOut(what=f"calls a second against {KERNEL_NAME}", why=str(error))
        return
    with bench.client() as client:
        for number in numbers:
            with (
                load("exec", [bench.socket_path] * number) as ours,
                load("kernel", [kernel.connection_file for kernel in kernels[:number]]) as theirs,
            ):
                taken = in_turn(bench, client, ours, theirs)
            rates[number] = median_rates(*taken)
            if number == numbers[-1]:
                yield rate_row(
                    f"calls a second in live sessions, {clients(number)}",
                    f"as many {KERNEL_NAME} clients",
                    *taken,
                )
    yield from curves("exec", "calls in live sessions", f"calls in {KERNEL_NAME}s", rates)


def many_live_sessions(bench: Bench) -> Findings:
    """Calls in a hundred live sessions at once."""
    number = min(LIVE_SESSIONS, bench.most_sessions)
    with (
        bench.client() as client,
        load("exec", [bench.socket_path] * number) as many,
        load("exec", [bench.socket_path]) as one,
    ):
        ours, alone = in_turn(bench, client, many, one)
    name = f"calls a second in live sessions, {clients(number)}"
    yield rate_row(name, "the same with 1 client", ours, alone)
    if cores() >= MANY_CORES:
        rates = [run.rate for run in ours]
        yield against_budget(name, rates, LIVE_BUDGET, "a second", least=True)
    yield distribution("call in a live session, 1 client", alone)
    yield distribution(f"call in a live session, {clients(number)}", ours)


def in_turn(
    bench: Bench, client: nsm.Client, *sides: Load | Callable[[], LoadRun]
) -> list[tuple[LoadRun, ...]]:
    """Let all sides work in turn, each after the pool has refilled.

    Args:
        client: of the supervisor that is measured.
    """

    def once(side: Load | Callable[[], LoadRun]) -> LoadRun:
        settle(client)
        return side.run(RUN_S) if isinstance(side, Load) else side()

    return alternate_all([partial(once, side) for side in sides], rounds=bench.some_rounds(0.2))


def floor_sides(floor: ForkFloor, *, window: int) -> list[Callable[[], LoadRun]]:
    """Forks in place of fresh sessions.

    Raises:
        FloorMissingError: they cannot be measured here.
    """
    floor.time("session")

    def side(kind: str) -> LoadRun:
        return LoadRun(rate=floor.rate(kind, window=window, seconds=RUN_S))

    return [partial(side, "session"), partial(side, "fork")]


def fresh_rates(
    number: int, ours: LoadRuns, theirs: LoadRuns, floors: Sequence[LoadRuns]
) -> Findings:
    """Throughput with so many clients, with its floors."""
    row = rate_row(f"one-shot runs a second, {clients(number)}", COLD_NAME, ours, theirs)
    many = cores() >= MANY_CORES
    has_target = number == cores()
    target = Target(bound="≥", value=2 if many else 2.5) if has_target else None
    yield dataclasses.replace(row, target=target)
    names = ("forks with a session's namespaces and mounts alone", "forks alone")
    for name, runs in zip(names, floors, strict=False):
        yield dataclasses.replace(rate_row(name, COLD_NAME, runs, theirs), floor=True)
    if has_target and many:
        rates = [run.rate for run in ours]
        yield against_budget(row.name, rates, FRESH_BUDGET, "a second", least=True)


def fresh_latencies(number: int, ours: LoadRuns, theirs: LoadRuns) -> Findings:
    """Durations of calls with so many clients."""
    yield Comparison(
        name=f"one-shot run, {clients(number)}, p95",
        peer=COLD_NAME,
        pairs=tuple(
            (percentile(mine.samples, 95), percentile(other.samples, 95))
            for mine, other in zip(ours, theirs, strict=True)
        ),
        unit="ms",
        target=Target(bound="≤", value=0.5) if number == cores() else None,
    )
    yield distribution(f"one-shot run, {clients(number)}", ours)
    yield distribution(f"{COLD_NAME}, {clients(number)}", theirs)


def rate_row(name: str, peer: str, ours: LoadRuns, theirs: LoadRuns) -> Comparison:
    """A row of calls a second."""
    return Comparison(
        name=name,
        peer=peer,
        pairs=tuple((mine.rate, other.rate) for mine, other in zip(ours, theirs, strict=True)),
        unit="a second",
        more=True,
    )


def median_rates(ours: LoadRuns, theirs: LoadRuns) -> tuple[float, float]:
    """The median of each side's calls a second."""
    return median(run.rate for run in ours), median(run.rate for run in theirs)


def distribution(name: str, runs: LoadRuns) -> Distribution:
    """The durations of all calls; one line for each number of clients would be too many to plot."""
    samples = chain.from_iterable(run.samples for run in runs)
    return Distribution(name=name, samples=tuple(samples), plotted=False)


def curves(plot: str, ours: str, theirs: str, rates: Rates) -> Findings:
    """Both sides against how many."""
    for column, name in enumerate((ours, theirs)):
        points = tuple((number, both[column]) for number, both in rates.items())
        yield Curve(plot=plot, name=name, points=points)
